# Through every paging mode and real mode, and back to long mode (AT&T syntax).
#
# adversity_modes(rdi: tables). The tables, all 32-bit words:
#   0 level-2 table of 32-bit paging   4 PAE pointer table   8 address of a word to be read (the probe)
#  12 where results go, in words      16 the PAE directory of the last GiB
# A result is made by `observe`: the word at an address, and what CPUID says. All memory is below 4 GiB.

    .set ALIAS, 0xc0000000          # maps physical 0 again; from ALIAS + 4 MiB on with small pages

    .pushsection .text.adversity_modes, "awx", @progbits
    .code64
    .globl adversity_modes
    .type adversity_modes, @function
adversity_modes:
    pushq %rbx
    pushq %rbp
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movl %edi, %ebp                 # the tables
    movl 12(%rbp), %edi             # results
    movq %rsp, modes_rsp
    movq %cr0, %rax
    movl %eax, modes_cr0
    movq %cr3, %rax
    movl %eax, modes_cr3
    movq %cr4, %rax
    movl %eax, modes_cr4
    pushq $0x18
    leaq compat(%rip), %rax
    pushq %rax
    lretq

    .code32
compat:                             # compatibility mode
    movl 8(%ebp), %esi
    call observe
    movl %cr0, %eax
    andl $0x7fffffff, %eax
    movl %eax, %cr0
    movl $0xc0000080, %ecx
    rdmsr
    andl $~0x100, %eax              # LME
    wrmsr
    call observe                    # paging off

    movl modes_cr4, %eax            # 32-bit paging, 4 MiB and 4 KiB pages
    andl $~0x20, %eax
    orl $0x10, %eax
    movl %eax, %cr4
    movl 0(%ebp), %eax
    movl %eax, %cr3
    call paging_on
    call observe
    leal ALIAS(%esi), %esi
    call observe
    leal observe + ALIAS + 0x400000, %eax
    call *%eax                      # runs in small pages
    movl 0(%ebp), %eax              # the alias maps 8 MiB now
    movl $0x800083, 0xc00(%eax)
    invlpg ALIAS
    movl $ALIAS, %esi
    call observe
    movl 0(%ebp), %eax
    movl $0x83, 0xc00(%eax)
    call paging_off
    movl 8(%ebp), %esi
    call observe

    movl modes_cr4, %eax            # PAE, 2 MiB pages
    orl $0x20, %eax
    movl %eax, %cr4
    movl 4(%ebp), %eax
    movl %eax, %cr3
    call paging_on
    leal ALIAS(%esi), %esi
    call observe
    leal observe + ALIAS, %eax
    call *%eax
    movl 16(%ebp), %eax
    movl $0x800083, (%eax)
    invlpg ALIAS
    movl $ALIAS, %esi
    call observe
    movl 16(%ebp), %eax
    movl $0x83, (%eax)
    call paging_off

    movl 8(%ebp), %esi
    ljmp $0x28, $(real16 - adversity_real_start)

from_real:                          # 32-bit again, paging off
    movw $0x10, %ax
    movw %ax, %ds
    movw %ax, %es
    movw %ax, %ss
    movw %ax, %fs
    movw %ax, %gs
    movl modes_rsp, %esp
    call observe
    movl modes_cr4, %eax
    movl %eax, %cr4
    movl modes_cr3, %eax
    movl %eax, %cr3
    movl $0xc0000080, %ecx
    rdmsr
    orl $0x100, %eax
    wrmsr
    movl modes_cr0, %eax
    movl %eax, %cr0
    ljmp $0x08, $long_again
    .code64
long_again:
    movq modes_rsp, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbp
    popq %rbx
    ret

    .code32
paging_on:
    movl %cr0, %eax
    orl $0x80000000, %eax
    movl %eax, %cr0
    ret
paging_off:
    movl %cr0, %eax
    andl $0x7fffffff, %eax
    movl %eax, %cr0
    ret
observe:                            # ESI: address; EDI: where to
    movl (%esi), %eax
    movl %eax, (%edi)
    xorl %eax, %eax
    xorl %ecx, %ecx
    cpuid
    xorl %ecx, %ebx
    xorl %edx, %ebx
    movl %ebx, 4(%edi)
    addl $8, %edi
    ret
    .size adversity_modes, . - adversity_modes

modes_rsp: .quad 0
modes_cr0: .long 0
modes_cr3: .long 0
modes_cr4: .long 0
    .popsection

# Copied to 0x8000. In real mode it runs as 0800:x, 0000:8000+x and 0801:x-16.
    .pushsection .rodata.adversity_real, "a", @progbits
    .balign 16
    .globl adversity_real_start, adversity_real_end, adversity_real_isr
    .set AT, 0x8000
adversity_real_start:
    .code16
real16:                             # 16-bit protected mode, based at AT
    movw $0x30, %ax
    movw %ax, %ds
    movw %ax, %es
    movw %ax, %ss
    movw %ax, %fs
    movw $0x10, %ax
    movw %ax, %gs                   # 4 GiB, and stays so
    movw $0x1f00, %sp
    movl %cr0, %eax
    andl $~1, %eax
    movl %eax, %cr0
    ljmp $0x0800, $(1f - adversity_real_start)
1:  movw $0x0800, %ax
    movw %ax, %ds
    movw %ax, %ss
    xorw %ax, %ax
    movw %ax, %es
    lidtl real_idt - adversity_real_start
    movw %cs, %ax
    movzwl %ax, %eax
    call put
    ljmp $0x0000, $(AT + 2f - adversity_real_start)
2:  movw %cs, %ax
    call put
    ljmp $0x0801, $(3f - adversity_real_start - 16)
3:  movw %cs, %ax
    call put
    lcall $0x0800, $(far_function - adversity_real_start)
    movzwl %bx, %eax
    call put
    ljmp $0x0800, $(4f - adversity_real_start)
4:  xorl %ebx, %ebx
    int $0x21
    movl %ebx, %eax
    call put
    xorl %eax, %eax
    xorl %ecx, %ecx
    cpuid
    xorl %ecx, %ebx
    xorl %edx, %ebx
    movl %ebx, %eax
    call put
    movl $0x1b, %ecx
    .byte 0x66, 0x2e                # prefixes, and an MSR
    rdmsr
    call put
    movw $0x80, %dx
    inb %dx, %al
    movzbl %al, %eax
    call put
    movl %gs:(%esi), %eax           # above 1 MiB: the limit of protected mode stays
    call put
    movl %cr0, %eax
    orl $1, %eax
    movl %eax, %cr0
    ljmpl $0x18, $from_real
put:                                # EAX to the results
    movl %eax, %gs:(%edi)
    addl $4, %edi
    ret
far_function:
    movw %cs, %bx
    lret
adversity_real_isr:
    movl $0x1234, %ebx
    iret
    .balign 8
real_idt:
    .word 0x3ff
    .long 0x9000
adversity_real_end:
    .popsection
    .code64
