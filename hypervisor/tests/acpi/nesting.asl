// Packages in packages, so deep that to give them back overflows any stack; the second processor's list is plain.
DefinitionBlock ("", "SSDT", 2, "LULL", "NESTING", 1)
{
    Scope (\_PR)
    {
        Processor (CPU0, 0, 0, 0)
        {
            Method (_CST)
            {
                Local0 = Package (1) { 0 }
                Local2 = 0
                While (Local2 < 30000)
                {
                    Local1 = Package (1) { 0 }
                    Local1 [0] = Local0
                    Local0 = Local1
                    Local2++
                }
                Return (Local0)
            }
        }
        Processor (CPU1, 1, 0, 0)
        {
            Name (_CST, Package ()
            {
                1,
                Package () { ResourceTemplate () { Register (SystemIO, 8, 0, 0x1814, 1) }, 2, 90, 0 }
            })
        }
    }
}
