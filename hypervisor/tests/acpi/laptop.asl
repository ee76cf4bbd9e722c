// A client's SSDT as reference code writes it: _PDC is turned into _OSC's form, which is checked, masked and kept, and _CST is put
// together from what the setup allows and what it was told. Or, Not, Subtract, Concatenate, Index, DerefOf, SizeOf, While.
DefinitionBlock ("", "SSDT", 2, "LULL", "LAPTOP", 1)
{
    Scope (\_SB)
    {
        Name (CFGD, 0x3B0FFF7F)
        Name (PC00, 0)
        Name (SDTL, 0)
        Name (CTAB, Package (3)
        {
            Package () { ResourceTemplate () { Register (FFixedHW, 1, 2, 0x00, 1) }, 1, 1, 1000 },
            Package () { ResourceTemplate () { Register (FFixedHW, 1, 2, 0x21, 1) }, 2, 127, 200 },
            Package () { ResourceTemplate () { Register (FFixedHW, 1, 2, 0x60, 3) }, 3, 1048, 100 }
        })
    }
    Scope (\_PR)
    {
        Processor (CPU0, 0, 0x1810, 6)
        {
            Method (_PDC, 1)
            {
                Local0 = CPDC (Arg0)
                GCAP (Local0)
            }
            Method (_OSC, 4)
            {
                Local0 = COSC (Arg0, Arg1, Arg2, Arg3)
                GCAP (Local0)
                Return (Local0)
            }
            Method (CPDC, 1)
            {
                CreateDWordField (Arg0, 0, REVS)
                CreateDWordField (Arg0, 4, SIZE)
                Local0 = SizeOf (Arg0)
                Local1 = Local0 - 8
                CreateField (Arg0, 64, (Local1 * 8), TEMP)
                Name (STS0, Buffer (4) { 0, 0, 0, 0 })
                Local2 = Concatenate (STS0, TEMP)
                Return (COSC (ToUUID ("4077A616-290C-47BE-9EBD-D87058713953"), REVS, SIZE, Local2))
            }
            Method (COSC, 4)
            {
                CreateDWordField (Arg3, 0, STS)
                CreateDWordField (Arg3, 4, CAP)
                CreateDWordField (Arg0, 0, IID0)
                CreateDWordField (Arg0, 4, IID1)
                CreateDWordField (Arg0, 8, IID2)
                CreateDWordField (Arg0, 12, IID3)
                Name (UID0, ToUUID ("4077A616-290C-47BE-9EBD-D87058713953"))
                CreateDWordField (UID0, 0, EID0)
                CreateDWordField (UID0, 4, EID1)
                CreateDWordField (UID0, 8, EID2)
                CreateDWordField (UID0, 12, EID3)
                If (!((IID0 == EID0) && (IID1 == EID1) && (IID2 == EID2) && (IID3 == EID3)))
                {
                    STS = 6
                    Return (Arg3)
                }
                If (Arg1 != 1)
                {
                    STS = 0x0A
                    Return (Arg3)
                }
                Return (Arg3)
            }
            Method (GCAP, 1)
            {
                CreateDWordField (Arg0, 0, STS)
                CreateDWordField (Arg0, 4, CAP)
                If ((STS == 6) || (STS == 0x0A)) { Return }
                If (STS & 1)
                {
                    CAP = CAP & 0x0BFF
                    Return
                }
                \_SB.PC00 = (\_SB.PC00 & 0x7FFFFFFF) | CAP
                If (\_SB.CFGD & 0x7A)
                {
                    If (((\_SB.CFGD & 0x200) && (\_SB.PC00 & 0x18)) && !(\_SB.SDTL & 2))
                    {
                        \_SB.SDTL |= 2
                    }
                }
            }
            Method (_CST)
            {
                // C-states that the setup allows, as far as the OS can use them.
                Local0 = 1
                If ((\_SB.CFGD & 0x20) && (\_SB.PC00 & 0x200)) { Local0++ }
                If (\_SB.CFGD & 0x80) { Local0++ }
                Else
                {
                If ((\_SB.CFGD & 0x40) && (\_SB.PC00 & 0x200)) { Local0++ }
                }
                Local1 = Package (4) { 0, 0, 0, 0 }
                If (Local0 == 1) { Local1 = Package (2) { 0, 0 } }
                Local1 [0] = Local0
                Local2 = 0
                While (Local2 < Local0)
                {
                    Local1 [(Local2 + 1)] = DerefOf (\_SB.CTAB [Local2])
                    Local2++
                }
                Return (Local1)
            }
        }
    }
}
