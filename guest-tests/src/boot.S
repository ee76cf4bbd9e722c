# Start-up of a guest kernel (AT&T syntax).
#
# The PVH entry (32-bit, paging off, EBX = hvm_start_info) and the AP trampoline (real mode) meet in `enter_long`,
# which maps the low 4 GiB one to one, enters long mode, and picks the CPU's index and stack. Nothing here recurses.

    .section .note.pvh, "a", @note
    .balign 4
    .long 4                         # size of the name
    .long 8                         # size of the value
    .long 18                        # XEN_ELFNOTE_PHYS32_ENTRY
    .asciz "Xen"
    .quad lull_guest_entry

# ---------------------------------------------------------------- boot CPU, 32 bit
    .section .text.boot, "ax", @progbits
    .code32
    .globl lull_guest_entry
    .type lull_guest_entry, @function
lull_guest_entry:
    cli
    cld
    movl %ebx, %esi                 # hvm_start_info
    movl $lull_guest_bss_start, %edi
    movl $lull_guest_bss_end, %ecx
    subl %edi, %ecx
    shrl $2, %ecx
    xorl %eax, %eax
    rep stosl

    # Level 4 and level 3: one entry, then four directories of 1 GiB and one more that Rust fills on demand.
    movl $boot_pml4, %edi
    movl $(4096 * 2 / 4), %ecx      # pml4 and pdpt lie side by side
    rep stosl
    movl $boot_pdpt + 3, boot_pml4
    movl $boot_pdpt, %edi
    movl $boot_pd + 3, %eax
    movl $5, %ecx
1:  movl %eax, (%edi)
    addl $4096, %eax
    addl $8, %edi
    decl %ecx
    jnz 1b
    # Level 2: 2 MiB pages, present + writable; the last GiB (devices) uncached.
    movl $boot_pd, %edi
    movl $0x83, %eax
    movl $2048, %ecx
2:  cmpl $0xc0000083, %eax
    jne 3f
    orl $0x18, %eax                 # PWT, PCD
3:  movl %eax, (%edi)
    movl $0, 4(%edi)
    addl $0x200000, %eax
    addl $8, %edi
    decl %ecx
    jnz 2b
    xorl %eax, %eax
    movl $1024, %ecx
    rep stosl                       # the spare directory, empty
    movl %esi, lull_guest_start_info
    xorl %ebp, %ebp                 # CPU index 0
    jmp enter_long
    .size lull_guest_entry, . - lull_guest_entry

# ---------------------------------------------------------------- both, 32 bit; EBP = CPU index
enter_long:
    lgdtl boot_gdtr
    movl $boot_pml4, %eax
    movl %eax, %cr3
    movl %cr4, %eax
    orl $0x620, %eax                # PAE, OSFXSR, OSXMMEXCPT
    movl %eax, %cr4
    movl $0xc0000080, %ecx          # EFER.LME
    rdmsr
    orl $0x100, %eax
    wrmsr
    movl %cr0, %eax
    andl $0x9fffffff, %eax          # CD, NW off
    orl $0x80010021, %eax           # PG, WP, NE, PE
    movl %eax, %cr0
    ljmp $0x08, $enter_long64

    .code64
enter_long64:
    movl $0x10, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %ss
    xorl %eax, %eax
    movl %eax, %fs
    movl %eax, %gs
    movl %ebp, %edi                 # argument: CPU index
    leal 1(%rbp), %eax
    shll $14, %eax                  # 16 KiB a stack
    leaq boot_stacks(%rax), %rsp
    xorl %ebp, %ebp
    call lull_guest_cpu_start
4:  cli
    hlt
    jmp 4b

# ---------------------------------------------------------------- other CPUs, real mode; copied to lull_guest_trampoline_at
    .section .rodata.trampoline, "a", @progbits
    .balign 16
    .globl lull_guest_trampoline_start, lull_guest_trampoline_end
    .set AT, 0x8000
    .code16
lull_guest_trampoline_start:
    cli
    cld
    xorw %ax, %ax
    movw %ax, %ds
    lgdtl AT + trampoline_gdtr - lull_guest_trampoline_start
    movl %cr0, %eax
    orl $1, %eax
    movl %eax, %cr0
    ljmpl $0x18, $(AT + trampoline32 - lull_guest_trampoline_start)
    .code32
trampoline32:
    movw $0x10, %ax
    movw %ax, %ds
    movw %ax, %es
    movw %ax, %ss
    # Which CPU is this? CPUID 1 EBX[31:24] is the initial APIC id; the table gives the index.
    movl $1, %eax
    cpuid
    shrl $24, %ebx
    movzbl lull_guest_index_of_apic(%ebx), %ebp
    cmpl $0xff, %ebp
    je 5f
    movl $enter_long, %eax
    jmp *%eax
5:  hlt                             # nobody asked for this CPU
    jmp 5b
    .balign 8
trampoline_gdtr:
    .word boot_gdt_end - boot_gdt - 1
    .long boot_gdt
lull_guest_trampoline_end:

# ---------------------------------------------------------------- exceptions and interrupts
    .section .text.vectors, "ax", @progbits
    .code64
    .balign 16
    .globl lull_guest_vectors
lull_guest_vectors:                 # one stub every 16 bytes
    .set vector, 0
    .rept 256
    .balign 16
    .if (vector == 8) || ((vector >= 10) && (vector <= 14)) || (vector == 17) || (vector == 21) || (vector == 29) || (vector == 30)
    .else
    pushq $0                        # the CPU pushed no error code
    .endif
    pushq $vector
    jmp trap_common
    .set vector, vector + 1
    .endr

    .type trap_common, @function
trap_common:
    pushq %rax
    pushq %rbx
    pushq %rcx
    pushq %rdx
    pushq %rsi
    pushq %rdi
    pushq %rbp
    pushq %r8
    pushq %r9
    pushq %r10
    pushq %r11
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, %rdi
    cld
    call lull_guest_trap
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %r11
    popq %r10
    popq %r9
    popq %r8
    popq %rbp
    popq %rdi
    popq %rsi
    popq %rdx
    popq %rcx
    popq %rbx
    popq %rax
    addq $16, %rsp
    iretq
    .size trap_common, . - trap_common

# ---------------------------------------------------------------- halting
# RDI = address of a u32, ESI = value. Called with interrupts off: if the word still has that value, opens interrupts and
# halts, in one uninterruptible step (the shadow of STI). An NMI in between would take the shadow away and its wake-up with it:
# the NMI handler moves an instruction pointer in [lull_guest_halt, lull_guest_halt_end) to lull_guest_halt_end.
    .globl lull_guest_halt, lull_guest_halt_end
    .type lull_guest_halt, @function
lull_guest_halt:
    cmpl %esi, (%rdi)
    jne lull_guest_halt_end
    sti
    hlt
lull_guest_halt_end:
    cli
    ret
    .size lull_guest_halt, . - lull_guest_halt

# ---------------------------------------------------------------- data
    .section .data.boot, "aw", @progbits
    .balign 16
    .globl boot_gdt
boot_gdt:
    .quad 0
    .quad 0x00af9b000000ffff        # 08: code, 64 bit
    .quad 0x00cf93000000ffff        # 10: data
    .quad 0x00cf9b000000ffff        # 18: code, 32 bit
boot_gdt_end:
boot_gdtr:
    .word boot_gdt_end - boot_gdt - 1
    .long boot_gdt
    .long 0
    .globl lull_guest_start_info
    .balign 8
lull_guest_start_info:
    .quad 0

    .section .uninit, "aw", @nobits
    .balign 4096
boot_pml4:  .skip 4096
boot_pdpt:  .skip 4096
boot_pd:    .skip 4096 * 4
    .globl lull_guest_spare_directory
lull_guest_spare_directory:
    .skip 4096
boot_stacks: .skip 16384 * 64
    .text
