// The first processor's _PDC makes the interpreter panic: a field that reaches beyond its buffer, into which is stored.
DefinitionBlock ("", "SSDT", 2, "LULL", "PANIC", 1)
{
    Scope (\_PR)
    {
        Processor (CPU0, 0, 0, 0)
        {
            Method (_PDC, 1)
            {
                CreateDWordField (Arg0, 100, CAPS)
                CAPS = 1
            }
            Name (_CST, Package ()
            {
                1,
                Package () { ResourceTemplate () { Register (SystemIO, 8, 0, 0x1814, 1) }, 2, 80, 0 }
            })
        }
        Processor (CPU1, 1, 0, 0)
        {
            Name (_CST, Package ()
            {
                1,
                Package () { ResourceTemplate () { Register (SystemIO, 8, 0, 0x1815, 1) }, 2, 90, 0 }
            })
        }
    }
}
