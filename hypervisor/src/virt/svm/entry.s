# The way into a guest and back (AMD APM vol. 2, 15.5 and 15.6).
#
# svm_run(gprs: *mut [u64; 16], vmcb: u64, host: u64, exited: fn(rounds) -> bool, rounds)
#   rdi  guest general registers in encoding order; rax and rsp (slots 0 and 4) live in the VMCB
#   rsi  physical address of the guest's VMCB
#   rdx  physical address of the page that holds the host's VMLOAD state
#   rcx  called after each exit, with r8: not 0 to enter again
#
# Called with GIF=0 and IF=1, and returns so: no interrupt or NMI can come in between, where GS, TR and the
# system-call registers are the guest's. No guest value stays in a register, no host value goes in: all fifteen
# registers that VMRUN does not load are loaded here, rax and rsp come from the VMCB.

.section .text.svm_run, "ax", @progbits
.global svm_run
.type svm_run, @function
svm_run:
    push    rbp
    push    rbx
    push    r12
    push    r13
    push    r14
    push    r15
    push    r8
    push    rcx
    push    rdx
    push    rsi
    push    rdi

2:  mov     rax, [rsp + 0x08]
    vmload  rax

    mov     rdi, [rsp]
    mov     rcx, [rdi + 0x08]
    mov     rdx, [rdi + 0x10]
    mov     rbx, [rdi + 0x18]
    mov     rbp, [rdi + 0x28]
    mov     rsi, [rdi + 0x30]
    mov     r8,  [rdi + 0x40]
    mov     r9,  [rdi + 0x48]
    mov     r10, [rdi + 0x50]
    mov     r11, [rdi + 0x58]
    mov     r12, [rdi + 0x60]
    mov     r13, [rdi + 0x68]
    mov     r14, [rdi + 0x70]
    mov     r15, [rdi + 0x78]
    mov     rdi, [rdi + 0x38]

    vmrun   rax
    vmsave  rax

    # rax and rsp are the host's again; below rsp nothing of the guest's.
    push    rdi
    mov     rdi, [rsp + 0x08]
    mov     [rdi + 0x08], rcx
    mov     [rdi + 0x10], rdx
    mov     [rdi + 0x18], rbx
    mov     [rdi + 0x28], rbp
    mov     [rdi + 0x30], rsi
    mov     [rdi + 0x40], r8
    mov     [rdi + 0x48], r9
    mov     [rdi + 0x50], r10
    mov     [rdi + 0x58], r11
    mov     [rdi + 0x60], r12
    mov     [rdi + 0x68], r13
    mov     [rdi + 0x70], r14
    mov     [rdi + 0x78], r15
    pop     qword ptr [rdi + 0x38]

    mov     rax, [rsp + 0x10]
    vmload  rax

    # The hypervisor must not speculate on, or by mistake use, what a guest left.
    xor     ecx, ecx
    xor     edx, edx
    xor     ebx, ebx
    xor     esi, esi
    xor     r8d, r8d
    xor     r9d, r9d
    xor     r10d, r10d
    xor     r11d, r11d
    xor     r12d, r12d
    xor     r13d, r13d
    xor     r14d, r14d
    xor     r15d, r15d
    # The frame of this function, for backtraces.
    lea     rbp, [rsp + 0x50]
    mov     rdi, [rsp + 0x20]
    call    qword ptr [rsp + 0x18]
    test    al, al
    jnz     2b

    add     rsp, 0x28
    pop     r15
    pop     r14
    pop     r13
    pop     r12
    pop     rbx
    pop     rbp
    ret
.size svm_run, . - svm_run
