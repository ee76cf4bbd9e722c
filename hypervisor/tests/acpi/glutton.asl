// A _CST that asks for more memory than there is, and one that is content.
DefinitionBlock ("", "SSDT", 2, "LULL", "GLUTTN", 1)
{
    Scope (\_PR)
    {
        Processor (CPU0, 0, 0, 0)
        {
            Method (_CST)
            {
                Local0 = Buffer (0x40000000) { }
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
