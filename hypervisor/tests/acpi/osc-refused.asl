// An _OSC that knows another UUID: _PDC tells instead.
DefinitionBlock ("", "SSDT", 2, "LULL", "OSCREF", 1)
{
    External (\_SB.CPUS, DeviceObj)
    External (\_SB.CPUS.C000, DeviceObj)

    Scope (\_SB.CPUS.C000)
    {
        Name (TOLD, 0)
        Method (_OSC, 4)
        {
            CreateDWordField (Arg3, 0, STAT)
            STAT = 4
            Return (Arg3)
        }
        Method (_PDC, 1)
        {
            CreateDWordField (Arg0, 0, REVS)
            CreateDWordField (Arg0, 4, SIZE)
            CreateDWordField (Arg0, 8, CAPS)
            If (REVS == 1)
            {
                If (SIZE == 1) { TOLD = CAPS }
            }
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
