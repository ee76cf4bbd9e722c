// A table that is in memory and that nobody loads but the code of load.asl: it has the _CST.
DefinitionBlock ("", "OEM1", 2, "LULL", "DYNAMIC", 1)
{
    External (\_PR.CPU0, ProcessorObj)
    External (\_PR.TOLD, IntObj)

    Scope (\_PR.CPU0)
    {
        Name (NATV, Package ()
        {
            2,
            Package () { ResourceTemplate () { Register (FFixedHW, 1, 2, 0x00, 1) }, 1, 1, 1000 },
            Package () { ResourceTemplate () { Register (FFixedHW, 1, 2, 0x31, 1) }, 2, 253, 200 }
        })
        Name (PORT, Package ()
        {
            1,
            Package () { ResourceTemplate () { Register (SystemIO, 8, 0, 0x1816, 1) }, 2, 70, 200 }
        })
        Method (_CST)
        {
            If (\_PR.TOLD & 0x200) { Return (NATV) }
            Return (PORT)
        }
    }
}
