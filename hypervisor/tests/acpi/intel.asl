// Client firmware of Intel's: MWAIT states for whoever says by _PDC that it can use them, else ports, else HLT.
DefinitionBlock ("", "SSDT", 2, "LULL", "INTEL", 1)
{
    Scope (\_PR)
    {
        // What the firmware was told last.
        Name (TOLD, 0)

        Name (NATV, Package ()
        {
            3,
            Package () { ResourceTemplate () { Register (FFixedHW, 1, 2, 0x00, 1) }, 1, 1, 1000 },
            Package () { ResourceTemplate () { Register (FFixedHW, 1, 2, 0x21, 1) }, 2, 127, 200 },
            Package () { ResourceTemplate () { Register (FFixedHW, 1, 2, 0x60, 3) }, 3, 1048, 100 }
        })
        Name (PORT, Package ()
        {
            2,
            Package () { ResourceTemplate () { Register (FFixedHW, 0, 0, 0, 0) }, 1, 1, 1000 },
            Package () { ResourceTemplate () { Register (SystemIO, 8, 0, 0x1814, 1) }, 2, 90, 200 }
        })
        Name (HALT, Package ()
        {
            1,
            Package () { ResourceTemplate () { Register (FFixedHW, 0, 0, 0, 0) }, 1, 1, 1000 }
        })

        Processor (CPU0, 0, 0x1810, 6)
        {
            Method (_PDC, 1)
            {
                CreateDWordField (Arg0, 8, CAPS)
                TOLD = CAPS
            }
            Method (_CST)
            {
                If (TOLD & 0x300) { Return (NATV) }
                If (TOLD & 0x10) { Return (PORT) }
                Return (HALT)
            }
        }
        Processor (CPU1, 1, 0x1810, 6)
        {
            Method (_PDC, 1)
            {
                \_PR.CPU0._PDC (Arg0)
            }
            Method (_CST)
            {
                Return (\_PR.CPU0._CST ())
            }
        }
    }
}
