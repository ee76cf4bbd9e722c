// As Genoa has it: vendor code 2, C2 by the port of the C-state base address. No _PDC, no _OSC.
DefinitionBlock ("", "SSDT", 2, "LULL", "AMD", 1)
{
    External (\_SB.CPUS, DeviceObj)
    External (\_SB.CPUS.C000, DeviceObj)
    External (\_SB.CPUS.C001, DeviceObj)
    External (\_SB.CPUS.C002, DeviceObj)
    External (\_SB.CPUS.C003, DeviceObj)

    Scope (\_SB)
    {
        Name (LIST, Package ()
        {
            2,
            Package () { ResourceTemplate () { Register (FFixedHW, 2, 2, 0, 0) }, 1, 1, 0 },
            Package () { ResourceTemplate () { Register (SystemIO, 8, 0, 0x414, 1) }, 2, 800, 0 }
        })
    }
    Scope (\_SB.CPUS.C000) { Method (_CST) { Return (\_SB.LIST) } }
    Scope (\_SB.CPUS.C001) { Method (_CST) { Return (\_SB.LIST) } }
    Scope (\_SB.CPUS.C002) { Method (_CST) { Return (\_SB.LIST) } }
    Scope (\_SB.CPUS.C003) { Method (_CST) { Return (\_SB.LIST) } }
}
