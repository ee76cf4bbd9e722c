# The way into the cage and the two ways out of it (see cage/hardware.rs).

    .section .text.lull_cage, "ax", @progbits

# extern "C" fn lull_cage_enter(stack_top: u64, work: extern "C" fn(*mut c_void), argument: *mut c_void) -> u64
# Calls work(argument) on the other stack with interrupts open. 0: it returned. 1: it was thrown out.
    .balign 16
    .globl lull_cage_enter
    .type lull_cage_enter, @function
lull_cage_enter:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, {saved}(%rip)
    movq %rdi, %rsp
    # Backtraces end here.
    xorl %ebp, %ebp
    movq %rdx, %rdi
    sti
    callq *%rsi
    cli
    xorl %eax, %eax
    jmp lull_cage_leave
    .size lull_cage_enter, . - lull_cage_enter

# extern "C" fn lull_cage_throw_out() -> !
# From a panic inside the cage. Exceptions and the timer make their IRET land here too.
    .globl lull_cage_throw_out
    .type lull_cage_throw_out, @function
lull_cage_throw_out:
    cli
    cld
    movl $1, %eax
lull_cage_leave:
    movq {saved}(%rip), %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    retq
    .size lull_cage_throw_out, . - lull_cage_throw_out
    .text
