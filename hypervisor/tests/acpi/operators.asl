// Every operator that firmware uses around _CST, held to its value: the first that is wrong is the latency of the one state.
DefinitionBlock ("", "SSDT", 2, "LULL", "OPERATRS", 1)
{
    Scope (\_PR)
    {
        Processor (CPU0, 0, 0, 0)
        {
            Name (LIST, Package (3) { 11, 22, 33 })
            Name (BUFF, Buffer (4) { 1, 2, 3, 4 })
            Name (NUMB, 7)
            Alias (NUMB, ALIA)
            Mutex (MUTX, 0)
            // The RTC, whose register 0x55 only stores.
            OperationRegion (CMOS, SystemIO, 0x70, 2)
            Field (CMOS, ByteAcc, NoLock, Preserve) { INDX, 8, DATA, 8 }
            IndexField (INDX, DATA, ByteAcc, NoLock, Preserve) { Offset (0x55), IDXA, 8 }

            Method (TWIC, 1) { Return (Arg0 * 2) }
            Method (WRNG, 1) { Return (Arg0) }
            Method (TEST, 1, Serialized)
            {
                // Or
                If ((1 | 6) != 7) { Return (WRNG (1)) }
                // Xor
                If ((5 ^ 6) != 3) { Return (WRNG (2)) }
                // NAnd
                If ((NAnd (6, 3) & 0xF) != 0xD) { Return (WRNG (3)) }
                // NOr
                If ((NOr (4, 1) & 0xF) != 0xA) { Return (WRNG (4)) }
                // Not
                If ((~5 & 0xF) != 0xA) { Return (WRNG (5)) }
                // Subtract
                If ((9 - Arg0) != 4) { Return (WRNG (6)) }
                // Multiply
                If ((Arg0 * 3) != 15) { Return (WRNG (7)) }
                // Mod
                If ((17 % Arg0) != 2) { Return (WRNG (8)) }
                // Shift
                If (((Arg0 << 3) >> 1) != 20) { Return (WRNG (9)) }
                // LNot
                If (!Arg0) { Return (WRNG (10)) }
                // LOr
                If (!((Arg0 == 4) || (Arg0 >= 5))) { Return (WRNG (11)) }
                // LLess
                If (!(Arg0 < 6)) { Return (WRNG (12)) }
                // FindSetLeftBit
                If (FindSetLeftBit (Arg0) != 3) { Return (WRNG (13)) }
                // FindSetRightBit
                If (FindSetRightBit (0x28) != 4) { Return (WRNG (14)) }
                // DerefOf of Index of a package
                If (DerefOf (LIST [1]) != 22) { Return (WRNG (15)) }
                // DerefOf of Index of a buffer
                If (DerefOf (BUFF [2]) != 3) { Return (WRNG (16)) }
                // SizeOf
                If ((SizeOf (LIST) != 3) || (SizeOf (BUFF) != 4)) { Return (WRNG (17)) }
                // ObjectType
                If ((ObjectType (LIST) != 4) || (ObjectType (BUFF) != 3)) { Return (WRNG (18)) }
                // ToInteger
                If (ToInteger (BUFF) != 0x04030201) { Return (WRNG (19)) }
                // Match
                If (Match (LIST, MEQ, 33, MTR, 0, 0) != 2) { Return (WRNG (20)) }
                // CondRefOf
                If (CondRefOf (\_SB.NONE, Local0)) { Return (WRNG (21)) }
                // Index as a target, of all kinds of elements
                LIST [0] = BUFF
                If (DerefOf (DerefOf (LIST [0]) [3]) != 4) { Return (WRNG (31)) }
                LIST [0] = 11
                BUFF [0] = 9
                If (ToInteger (BUFF) != 0x04030209) { Return (WRNG (32)) }
                // Increment, Decrement, While, Break, Continue
                Local0 = 0
                Local1 = 0
                While (1)
                {
                    Local0++
                    If (Local0 == 2) { Continue }
                    If (Local0 > 4) { Break }
                    Local1 += Local0
                }
                Local1--
                If (Local1 != 7) { Return (WRNG (33)) }
                // Divide, with both results
                Divide (17, Arg0, Local2, Local3)
                If ((Local2 != 2) || (Local3 != 3)) { Return (WRNG (34)) }
                // A predicate that is a local, and Else
                Local0 = 0
                If (Local0) { Return (WRNG (35)) } ElseIf (Local1) { Local0 = 1 } Else { Return (WRNG (36)) }
                If (!Local0) { Return (WRNG (37)) }
                // Concatenate, Mid
                Local2 = Concatenate (BUFF, Buffer (2) { 7, 8 })
                Local3 = Mid (Local2, 3, 3)
                If ((SizeOf (Local3) != 3) || (DerefOf (Local3 [2]) != 8)) { Return (WRNG (38)) }
                // FromBCD, ToBCD
                If ((FromBCD (0x42) != 42) || (ToBCD (42) != 0x42)) { Return (WRNG (50)) }
                // RefOf, and a store through it
                Local3 = RefOf (NUMB)
                Local3 = 77
                If ((NUMB != 77) || (DerefOf (RefOf (NUMB)) != 77)) { Return (WRNG (39)) }
                // CopyObject
                CopyObject (Arg0, Local4)
                Local4 += 1
                If ((Local4 != 6) || (Arg0 != 5)) { Return (WRNG (40)) }
                // Fields of a buffer, of all widths
                CreateBitField (BUFF, 0, BIT0)
                CreateByteField (BUFF, 1, BYT1)
                CreateWordField (BUFF, 2, WRD1)
                CreateField (BUFF, 4, 8, MIDL)
                If ((BIT0 != 1) || (BYT1 != 2) || (WRD1 != 0x0403) || (MIDL != 0x20)) { Return (WRNG (41)) }
                WRD1 = 0x1234
                If (ToInteger (BUFF) != 0x12340209) { Return (WRNG (42)) }
                // Acquire, Release, Notify, Sleep, Stall, Timer
                Acquire (MUTX, 0xFFFF)
                Local5 = Timer
                Sleep (1)
                Stall (10)
                Notify (\_PR.CPU0, 0x81)
                Release (MUTX)
                If (Timer < Local5) { Return (WRNG (43)) }
                // An alias, and a method whose value is an argument of another
                If ((ALIA != 77) || (TWIC (TWIC (3)) != 12)) { Return (WRNG (44)) }
                Switch (ToInteger (Arg0))
                {
                    Case (4) { Return (WRNG (45)) }
                    Case (Package () { 5, 6 }) { Local0 = 5 }
                    Default { Return (WRNG (46)) }
                }
                If (Local0 != 5) { Return (WRNG (47)) }
                // A variable package whose size is computed, filled by a loop
                Local6 = 3
                Local7 = Package (Local6) { }
                Local0 = 0
                While (Local0 < Local6)
                {
                    Local7 [Local0] = Local0 * 10
                    Local0++
                }
                If ((SizeOf (Local7) != 3) || (DerefOf (Local7 [2]) != 20)) { Return (WRNG (48)) }
                // An index and a data register
                IDXA = 0x5A
                If (IDXA != 0x5A) { Return (WRNG (49)) }
                Return (0)
            }
            Method (_CST)
            {
                Local0 = Package (4) { Buffer (1) { }, 2, 90, 0 }
                Local0 [0] = ResourceTemplate () { Register (SystemIO, 8, 0, 0x1814, 1) }
                Local1 = TEST (5)
                If (Local1) { Local0 [2] = Local1 }
                Local2 = Package (2) { 1, 0 }
                Local2 [1] = Local0
                Return (Local2)
            }
        }
    }
}
