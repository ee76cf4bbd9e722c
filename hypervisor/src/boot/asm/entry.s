# The two entries of the image: 32-bit protected mode, flat segments, paging off, EBX = what the loader tells.
#   PVH:        EBX = hvm_start_info; EAX means nothing
#   Multiboot2: EBX = boot information; EAX = 36D76289h (Multiboot2 specification 2.0, 3.3)
# Builds an identity map of the first 4 GiB, goes to 64-bit mode and calls lull_boot_entry(protocol, address), where
# protocol is 0 for PVH, else EAX as it was.

    .section .note.Xen, "a", @note
    .balign 4
    .long 4, 4, 18                      # "Xen", 4 bytes of descriptor, XEN_ELFNOTE_PHYS32_ENTRY
    .asciz "Xen"
    .long lull_pvh_entry

    # Multiboot2 specification 2.0, 3.1: loaded by its ELF headers, entered where the tag says.
    .section .boot.header, "a", @progbits
    .balign 8
.Lheader:
    .long 0xE85250D6, 0                 # magic; architecture: i386, protected mode
    .long .Lheader_end - .Lheader
    .long -(0xE85250D6 + (.Lheader_end - .Lheader))
    .balign 8
    .short 1, 0                         # tag "information request": boot cannot do without a memory map (6)
    .long 12, 6
    .balign 8
    .short 3, 0                         # tag "entry address": the ELF entry is PVH's
    .long 12, lull_multiboot2_entry
    .balign 8
    .short 6, 0                         # tag "module alignment": modules start on a page
    .long 8
    .balign 8
    .short 0, 0                         # the last tag
    .long 8
.Lheader_end:

    .section .boot.text, "ax", @progbits
    .code32
    .globl lull_multiboot2_entry
    .type lull_multiboot2_entry, @function
lull_multiboot2_entry:
    movl %eax, %esp                     # there is no stack yet: ESP keeps the protocol
    jmp .Lcommon
    .size lull_multiboot2_entry, . - lull_multiboot2_entry

    .globl lull_pvh_entry
    .type lull_pvh_entry, @function
lull_pvh_entry:
    xorl %esp, %esp
.Lcommon:
    cli
    cld
    movl %ebx, %esi

    # The loader zeroes .bss at the first boot; after a warm reset nobody has.
    movl $__bss_start, %edi
    movl $__bss_end, %ecx
    subl %edi, %ecx
    shrl $2, %ecx
    xorl %eax, %eax
    rep stosl

    # Without long mode there is nothing to run on: say so and stop.
    movl $0x80000000, %eax
    cpuid
    cmpl $0x80000001, %eax
    jb .Lno_long_mode
    movl $0x80000001, %eax
    cpuid
    testl $(1 << 29), %edx
    jz .Lno_long_mode
    movl %edx, %ebp                     # bit 20: NX

    # PML4[0] -> PDPT; PDPT[0..4] -> PD; 2 MiB pages.
    movl $lull_boot_tables + 0x1003, %eax
    movl %eax, lull_boot_tables
    movl $lull_boot_tables + 0x2003, %eax
    movl $lull_boot_tables + 0x1000, %edi
    movl $4, %ecx
.Lpdpt:
    movl %eax, (%edi)
    addl $0x1000, %eax
    addl $8, %edi
    loop .Lpdpt
    movl $0x83, %eax
    movl $lull_boot_tables + 0x2000, %edi
    movl $2048, %ecx
.Lpd:
    movl %eax, (%edi)
    addl $0x200000, %eax
    addl $8, %edi
    loop .Lpd

    movl %cr4, %eax
    orl $(1 << 5), %eax                 # PAE
    movl %eax, %cr4
    movl $lull_boot_tables, %eax
    movl %eax, %cr3
    movl $0xC0000080, %ecx              # EFER
    rdmsr
    orl $(1 << 8), %eax                 # LME
    testl $(1 << 20), %ebp
    jz .Lno_nx
    orl $(1 << 11), %eax                # NXE
.Lno_nx:
    wrmsr
    movl %cr0, %eax
    andl $~((1 << 30) | (1 << 29) | (1 << 2)), %eax   # CD, NW, EM
    orl $((1 << 31) | (1 << 16) | (1 << 1) | 1), %eax # PG, WP, MP, PE
    movl %eax, %cr0
    lgdt lull_boot_gdt_pointer
    ljmp $8, $.Llong_mode

.Lno_long_mode:
    movl $.Lno_long_mode_records, %esi
    movw $0xE9, %dx                     # the machine channel
.Lnext_byte:
    lodsb
    testb %al, %al
    jz .Lsay
    outb %al, %dx
    jmp .Lnext_byte
.Lsay:
    movw $0x3FB, %dx                    # COM1: 8 data bits, no parity, 1 stop bit; at the speed that it has
    movb $3, %al
    outb %al, %dx
    movl $.Lno_long_mode_text, %esi
.Lnext_char:
    lodsb
    testb %al, %al
    jz .Lstop
    movb %al, %bl
    movw $0x3FD, %dx
    movl $100000, %ecx
.Lwait_tx:
    inb %dx, %al
    testb $0x20, %al
    jnz .Lsend
    loop .Lwait_tx
.Lsend:
    movb %bl, %al
    movw $0x3F8, %dx
    outb %al, %dx
    jmp .Lnext_char
.Lstop:
    hlt
    jmp .Lstop

    .code64
.Llong_mode:
    movw $16, %ax
    movw %ax, %ds
    movw %ax, %es
    movw %ax, %ss
    xorl %eax, %eax
    movw %ax, %fs
    movw %ax, %gs
    movl %esp, %edi
    movl $lull_boot_stack_top, %esp
    movl %esi, %esi                     # the upper half means nothing yet
    xorl %ebp, %ebp                     # ends every backtrace
    call lull_boot_entry
    ud2
    .size lull_pvh_entry, . - lull_pvh_entry

    .balign 8
lull_boot_gdt:
    .quad 0
    .quad 0x00AF9B000000FFFF            # 64-bit code
    .quad 0x00CF93000000FFFF            # data
lull_boot_gdt_pointer:
    .word . - lull_boot_gdt - 1
    .quad lull_boot_gdt
.Lno_long_mode_records:
    .ascii "{{\"v\":1,\"type\":\"problem\",\"where\":\"cpu\",\"name\":\"boot\",\"why\":\"the CPU has no 64-bit mode\","
    .ascii "\"expected\":\"CPUID 8000_0001h EDX bit 29\"}}\n"
    .asciz "{{\"v\":1,\"type\":\"end\",\"status\":\"bad-input\",\"code\":20}}\n"
.Lno_long_mode_text:
    .asciz "lull: this CPU has no 64-bit mode (CPUID 8000_0001h EDX bit 29): one that has is needed\r\n"

    .section .bss.boot_tables, "aw", @nobits
    .balign 4096
    .globl lull_boot_tables
lull_boot_tables:
    .skip 6 * 4096

    # The stack of the first CPU, above a page that the final page tables leave out.
    .section .boot.stacks, "aw", @nobits
    .balign 4096
    .globl lull_boot_stack_guard
lull_boot_stack_guard:
    .skip 4096
    .skip 128 * 1024
    .globl lull_boot_stack_top
lull_boot_stack_top:
    .text
