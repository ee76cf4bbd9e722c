// Firmware that loads the table with its _CST when it is told what the system can do. It looks for it as a system does: RSDP, RSDT.
DefinitionBlock ("", "SSDT", 2, "LULL", "LOAD", 1)
{
    Scope (\_PR)
    {
        Name (TOLD, 0)
        Name (DONE, 0)
        Name (HNDL, 0)

        // The four bytes at an address.
        Method (FOUR, 1, Serialized)
        {
            OperationRegion (WORD, SystemMemory, Arg0, 4)
            Field (WORD, DWordAcc, NoLock, Preserve) { VALU, 32 }
            Return (VALU)
        }
        Method (FIND, 1)
        {
            Local0 = 0xF0000
            While (Local0 < 0x100000)
            {
                If ((FOUR (Local0) == 0x20445352) && (FOUR (Local0 + 4) == 0x20525450)) { Break }
                Local0 += 0x10
            }
            If (Local0 >= 0x100000) { Return (0) }
            Local1 = FOUR (Local0 + 16)
            Local2 = (FOUR (Local1 + 4) - 36) / 4
            While (Local2)
            {
                Local2--
                Local3 = FOUR (Local1 + 36 + (Local2 * 4))
                If (FOUR (Local3) == Arg0) { Return (Local3) }
            }
            Return (0)
        }
        Processor (CPU0, 0, 0, 0)
        {
            Method (_PDC, 1, Serialized)
            {
                CreateDWordField (Arg0, 8, CAPS)
                \_PR.TOLD |= CAPS
                If (!\_PR.DONE)
                {
                    \_PR.DONE = 1
                    // No table: this is named, and no more.
                    OperationRegion (NONE, SystemMemory, 0xF0000, 0x100)
                    Load (NONE, Local1)
                    Local0 = \_PR.FIND (0x314D454F)
                    OperationRegion (DYNT, SystemMemory, Local0, \_PR.FOUR (Local0 + 4))
                    Load (DYNT, \_PR.HNDL)
                }
            }
        }
    }
}
