// Of QEMU's DSDT, what the other tables here refer to: for evaluation without QEMU.
DefinitionBlock ("", "DSDT", 1, "LULL", "CPUS", 1)
{
    Scope (\_SB)
    {
        Device (CPUS)
        {
            Name (_HID, "ACPI0010")
            Processor (C000, 0, 0, 0) { }
            Processor (C001, 1, 0, 0) { }
            Processor (C002, 2, 0, 0) { }
            Processor (C003, 3, 0, 0) { }
        }
    }
}
