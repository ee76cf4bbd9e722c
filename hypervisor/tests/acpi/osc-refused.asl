// An _OSC that knows another UUID: _PDC tells instead.
DefinitionBlock ("", "SSDT", 2, "LULL", "OSCREF", 1)
{
    External (\_SB.CPUS, DeviceObj)
    External (\_SB.CPUS.C000, DeviceObj)

    Scope (\_SB.CPUS.C000)
    {
        Name (TOLD, 0)
        Name (REVI, 0)
        Name (SIZE, 0)
        Method (_OSC, 4)
        {
            CreateDWordField (Arg3, 0, STAT)
            STAT = 4
            Return (Arg3)
        }
        Method (_PDC, 1)
        {
            CreateDWordField (Arg0, 0, DW00)
            CreateDWordField (Arg0, 4, DW04)
            CreateDWordField (Arg0, 8, DW08)
            REVI = DW00
            SIZE = DW04
            If ((REVI == 1) && (SIZE == 1)) { TOLD = DW08 }
        }
        // Told exactly what is expected with MWAIT, exactly what is expected without, something else.
        Name (RICH, Package ()
        {
            1,
            Package () { ResourceTemplate () { Register (FFixedHW, 1, 2, 0x10, 1) }, 1, 10, 0 }
        })
        Name (POOR, Package ()
        {
            1,
            Package () { ResourceTemplate () { Register (SystemIO, 8, 0, 0x1814, 1) }, 2, 20, 0 }
        })
        Name (ODDS, Package ()
        {
            1,
            Package () { ResourceTemplate () { Register (FFixedHW, 0, 0, 0, 0) }, 1, 30, 0 }
        })
        Method (_CST)
        {
            If (TOLD == 0x31A) { Return (RICH) }
            If (TOLD == 0x1A) { Return (POOR) }
            Return (ODDS)
        }
    }
}
