// The same by _OSC: processor devices, as newer firmware has them. It masks what is not a C-state's bit.
DefinitionBlock ("", "SSDT", 2, "LULL", "OSC", 1)
{
    Scope (\_SB)
    {
        Name (TOLD, 0)

        Device (CP00)
        {
            Name (_HID, "ACPI0007")
            Name (_UID, 0)
            Method (_OSC, 4)
            {
                CreateDWordField (Arg3, 0, STAT)
                CreateDWordField (Arg3, 4, CAPS)
                If (Arg0 != ToUUID ("4077a616-290c-47be-9ebd-d87058713953"))
                {
                    STAT = 4
                    Return (Arg3)
                }
                If (Arg1 != 1)
                {
                    STAT = 8
                    Return (Arg3)
                }
                CAPS = CAPS & 0x0318
                TOLD = CAPS
                STAT = 0x10
                Return (Arg3)
            }
            Method (_CST)
            {
                If (TOLD & 0x200)
                {
                    Return (Package ()
                    {
                        2,
                        Package () { ResourceTemplate () { Register (FFixedHW, 1, 2, 0x00, 1) }, 1, 1, 1000 },
                        Package () { ResourceTemplate () { Register (FFixedHW, 1, 2, 0x20, 1) }, 3, 170, 200 }
                    })
                }
                If (TOLD & 0x10)
                {
                    Return (Package ()
                    {
                        2,
                        Package () { ResourceTemplate () { Register (FFixedHW, 0, 0, 0, 0) }, 1, 1, 1000 },
                        Package () { ResourceTemplate () { Register (SystemIO, 8, 0, 0x1815, 1) }, 3, 300, 200 }
                    })
                }
                Return (Package ()
                {
                    1,
                    Package () { ResourceTemplate () { Register (FFixedHW, 0, 0, 0, 0) }, 1, 77, 1000 }
                })
            }
            // Whoever is told by _OSC is not told by this: it would be seen.
            Method (_PDC, 1)
            {
                TOLD = 0
            }
        }
    }
}
