// Both processors' _CST call themselves: the stack of the interpreter has an end.
DefinitionBlock ("", "SSDT", 2, "LULL", "RECURS", 1)
{
    Scope (\_PR)
    {
        Processor (CPU0, 0, 0, 0)
        {
            Method (_CST) { Return (\_PR.CPU0._CST ()) }
        }
        Processor (CPU1, 1, 0, 0)
        {
            Method (_CST) { Return (\_PR.CPU0._CST ()) }
        }
    }
}
