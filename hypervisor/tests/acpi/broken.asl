// Wrong in every way that a list can be wrong; between the faults are two entries that can be used, in the wrong order.
DefinitionBlock ("", "SSDT", 2, "LULL", "BROKEN", 1)
{
    Scope (\_PR)
    {
        // Under names of its own: the compiler checks what stands under the reserved one.
        Processor (CPU0, 0, 0, 0)
        {
            Method (_CST) { Return (LIST) }
            Name (LIST, Package ()
            {
                10,
                Package () { ResourceTemplate () { Register (FFixedHW, 1, 2, 0x00, 1) }, 1, 500, 1000 },
                "no entry",
                Package () { ResourceTemplate () { Register (FFixedHW, 1, 2, 0x10, 1) }, 2, 3 },
                Package () { 0x10, 2, 3, 4 },
                Package () { Buffer (4) { 0x82, 12, 0, 0x7F }, 2, 3, 4 },
                Package () { ResourceTemplate () { Register (FFixedHW, 1, 2, 0x10, 1) }, 2, "fast", 4 },
                Package () { ResourceTemplate () { Register (FFixedHW, 1, 2, 0x10, 1) }, 7, 3, 4 },
                Package () { ResourceTemplate () { Register (SystemMemory, 8, 0, 0x414, 1) }, 2, 3, 4 },
                Package () { ResourceTemplate () { Register (SystemIO, 8, 0, 0x1815, 1) }, 2, 0xFFFFFFFF, 4 },
                Package () { ResourceTemplate () { Register (SystemIO, 8, 0, 0x1814, 1) }, 2, 90, 4 }
            })
        }
        // The count lies: nothing in it can be trusted.
        Processor (CPU1, 1, 0, 0)
        {
            Method (_CST) { Return (LIST) }
            Name (LIST, Package ()
            {
                2,
                Package () { ResourceTemplate () { Register (FFixedHW, 1, 2, 0x00, 1) }, 1, 1, 1000 }
            })
        }
        // No list at all.
        Processor (CPU2, 2, 0, 0)
        {
            Method (_CST) { Return (LIST) }
            Name (LIST, "C1, C2 and C3")
        }
    }
}
