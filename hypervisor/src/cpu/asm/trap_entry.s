# Entry of every exception and interrupt: 256 stubs of 16 bytes, one common path.
# The frame built here is cpu::trap::TrapFrame.

    .section .text.lull_trap, "ax", @progbits
    .balign 16
    .globl lull_trap_stubs
    .type lull_trap_stubs, @function
lull_trap_stubs:
    .set vector, 0
    .rept 256
    .balign 16
    # These push an error code themselves: #DF #TS #NP #SS #GP #PF #AC #CP #VC #SX.
    .if (vector == 8) || ((vector >= 10) && (vector <= 14)) || (vector == 17) || (vector == 21) || (vector == 29) || (vector == 30)
    .else
    pushq $0
    .endif
    pushq $vector
    jmp lull_trap_common
    .set vector, vector + 1
    .endr
    .balign 16
    .size lull_trap_stubs, . - lull_trap_stubs

    .type lull_trap_common, @function
lull_trap_common:
    pushq %rax
    pushq %rdx
    # Interrupts and NMI stamp the first handler since the last sleep, as early as can be.
    cmpl $32, 16(%rsp)
    jae 1f
    cmpl $2, 16(%rsp)
    jne 2f
1:  rdtsc
    shlq $32, %rdx
    orq %rdx, %rax
    cmpq $0, %gs:{first_irq}
    jne 2f
    movq %rax, %gs:{first_irq}
2:  pushq %rcx
    pushq %rbx
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
    cld
    movq %rsp, %rdi
    call lull_trap
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
    popq %rbx
    popq %rcx
    popq %rdx
    popq %rax
    addq $16, %rsp
    iretq
    .size lull_trap_common, . - lull_trap_common
    .text
