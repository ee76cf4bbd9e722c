// Fields of all kinds of regions, at offsets and within bytes. One list if all hold what they must, else another.
DefinitionBlock ("", "SSDT", 2, "LULL", "FIELDS", 1)
{
    External (\_SB.PCI0, DeviceObj)

    // The host bridge of q35: vendor 0x8086, device 0x29C0.
    Scope (\_SB.PCI0)
    {
        Device (HOST)
        {
            Name (_ADR, 0)
            OperationRegion (CONF, PCI_Config, 0, 0x100)
            Field (CONF, WordAcc, NoLock, Preserve) { VEND, 16, DEVI, 16 }
        }
    }
    Scope (\_PR)
    {
        // The RTC: an index and a data register, the latter also by halves.
        OperationRegion (CMOS, SystemIO, 0x70, 2)
        Field (CMOS, ByteAcc, NoLock, Preserve) { INDX, 8, DATA, 8 }
        Field (CMOS, ByteAcc, NoLock, Preserve) { Offset (1), LOWN, 4, HIGH, 4 }

        // Where a BIOS has its date: a slash is the third character.
        OperationRegion (BIOS, SystemMemory, 0xFFFF0, 0x10)
        Field (BIOS, ByteAcc, NoLock, Preserve) { Offset (7), SLSH, 8 }

        Processor (CPU0, 0, 0, 0)
        {
            Name (GOOD, Package ()
            {
                1,
                Package () { ResourceTemplate () { Register (SystemIO, 8, 0, 0x1814, 1) }, 2, 90, 0 }
            })
            Name (BAD1, Package ()
            {
                1,
                Package () { ResourceTemplate () { Register (FFixedHW, 0, 0, 0, 0) }, 1, 1, 0 }
            })
            Name (BAD2, Package ()
            {
                1,
                Package () { ResourceTemplate () { Register (FFixedHW, 0, 0, 0, 0) }, 1, 2, 0 }
            })
            Name (BAD3, Package ()
            {
                1,
                Package () { ResourceTemplate () { Register (FFixedHW, 0, 0, 0, 0) }, 1, 3, 0 }
            })
            Name (BAD4, Package ()
            {
                1,
                Package () { ResourceTemplate () { Register (FFixedHW, 0, 0, 0, 0) }, 1, 4, 0 }
            })
            Method (_CST)
            {
                If (\_SB.PCI0.HOST.VEND != 0x8086) { Return (BAD1) }
                If (\_SB.PCI0.HOST.DEVI != 0x29C0) { Return (BAD1) }
                // Register D: the clock is valid.
                INDX = 0x0D
                If (DATA != 0x80) { Return (BAD2) }
                // A byte that the RTC only stores.
                INDX = 0x55
                DATA = 0
                HIGH = 0x0A
                LOWN = 0x05
                If (DATA != 0xA5) { Return (BAD3) }
                HIGH = 0x03
                If (DATA != 0x35) { Return (BAD3) }
                If (SLSH != 0x2F) { Return (BAD4) }
                Return (GOOD)
            }
        }
    }
}
