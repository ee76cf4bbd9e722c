// Code that writes where it has no business: the hypervisor's own memory, its debug-exit port, the interrupt controller.
DefinitionBlock ("", "SSDT", 2, "LULL", "INTRUD", 1)
{
    Scope (\_PR)
    {
        OperationRegion (IMAG, SystemMemory, 0x100000, 0x10000)
        Field (IMAG, DWordAcc, NoLock, WriteAsZeros) { FRST, 32, Offset (0x2000), SCND, 32, Offset (0x8000), THRD, 32 }
        OperationRegion (LAPC, SystemMemory, 0xFEE00000, 0x1000)
        Field (LAPC, DWordAcc, NoLock, WriteAsZeros) { Offset (0xF0), SPUR, 32 }
        OperationRegion (EXIT, SystemIO, 0xF4, 1)
        Field (EXIT, ByteAcc, NoLock, WriteAsZeros) { CODE, 8 }
        OperationRegion (RSET, SystemIO, 0xCF9, 1)
        Field (RSET, ByteAcc, NoLock, WriteAsZeros) { RSTC, 8 }

        Processor (CPU0, 0, 0, 0)
        {
            Method (_CST)
            {
                FRST = 0
                SCND = 0
                THRD = 0
                SPUR = 0
                CODE = 1
                RSTC = 6
                Return (Package ()
                {
                    1,
                    Package () { ResourceTemplate () { Register (SystemIO, 8, 0, 0x1814, 1) }, 2, 90, 0 }
                })
            }
        }
    }
}
