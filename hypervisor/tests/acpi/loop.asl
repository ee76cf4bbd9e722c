// The first processor's _CST never comes to an end, the second's does.
DefinitionBlock ("", "SSDT", 2, "LULL", "LOOP", 1)
{
    Scope (\_PR)
    {
        Processor (CPU0, 0, 0, 0)
        {
            Method (_CST)
            {
                While (1) { }
                Return (\_PR.CPU1._CST)
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
