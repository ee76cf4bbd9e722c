# Where the other CPUs start: 16-bit real mode at the start of a page below 1 MiB, CS = page >> 4.
# The code is copied there; the page behind it holds the parameters (boot/ap.rs, struct Parameters).
# Goes to 64-bit mode with the final page tables and calls the entry with this CPU's own area.

    .section .boot.trampoline, "a", @progbits
    .balign 16
    .globl lull_ap_trampoline
    .type lull_ap_trampoline, @function
    .code16
lull_ap_trampoline:
    cli
    cld
    movw %cs, %ax
    movw %ax, %ds
    movzwl %ax, %ebx
    shll $4, %ebx                       # linear address of this page
    lgdtl 0x1000                        # Parameters::gdt_pointer
    movl %cr0, %eax
    andl $~((1 << 31) | (1 << 30) | (1 << 29) | (1 << 2)), %eax   # PG, CD, NW, EM
    orl $((1 << 1) | 1), %eax           # MP, PE
    movl %eax, %cr0
    ljmpl *0x1008                       # Parameters::protected

    .code32
.Lap_protected:
    movw $16, %ax
    movw %ax, %ds
    movw %ax, %es
    movw %ax, %ss
    movl 0x1018(%ebx), %eax             # Parameters::cr4
    movl %eax, %cr4
    movl 0x101C(%ebx), %eax             # Parameters::cr3
    movl %eax, %cr3
    movl $0xC0000080, %ecx              # EFER
    rdmsr
    orl 0x1020(%ebx), %eax              # Parameters::efer
    wrmsr
    movl %cr0, %eax
    orl $((1 << 31) | (1 << 16) | (1 << 5)), %eax                 # PG, WP, NE
    movl %eax, %cr0
    ljmpl *0x1010(%ebx)                 # Parameters::long

    .code64
.Lap_long:
    # Whose area is mine: by my initial APIC id. Taking it leaves a null, so that nobody gets it twice.
    movl %ebx, %esi
    movl $1, %eax
    cpuid
    shrl $24, %ebx
    xorl %edi, %edi
    xchgq %rdi, 0x1040(%rsi, %rbx, 8)   # Parameters::areas
    testq %rdi, %rdi
    jz .Lap_stop
    movq {start_stack}(%rdi), %rsp
    movq 0x1028(%rsi), %rax             # Parameters::entry
    xorl %ebp, %ebp                     # ends every backtrace
    callq *%rax
.Lap_stop:
    hlt
    jmp .Lap_stop

    .globl lull_ap_trampoline_end
lull_ap_trampoline_end:
    .size lull_ap_trampoline, . - lull_ap_trampoline
    .globl lull_ap_protected
    .set lull_ap_protected, .Lap_protected
    .globl lull_ap_long
    .set lull_ap_long, .Lap_long
    .code64
    .text
