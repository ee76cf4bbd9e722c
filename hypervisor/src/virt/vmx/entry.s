# The way into a guest and back (SDM vol. 3, 28.7 and 29.5).
#
# vmx_run(gprs: *mut [u64; 16], launched: u64, host_rsp: *mut u64) -> u64
#   rdi  guest general registers in encoding order; rsp (slot 4) lives in the VMCS
#   rsi  not 0: this VMCS was entered before (VMRESUME), else VMLAUNCH
#   rdx  what HOST_RSP of this VMCS holds; written only when it changes
#   returns 0 after an exit, 1 if the entry instruction failed
#
# Called with interrupts off. VM entry and VM exit switch RSP, RIP, RFLAGS, segments, CR0, CR3, CR4, EFER, PAT and DR7 in one;
# everything else that is switched here is a general register. After an exit no guest value stays in a register.

.section .text.vmx_run, "ax", @progbits
.global vmx_run
.type vmx_run, @function
vmx_run:
    push    rbp
    push    rbx
    push    r12
    push    r13
    push    r14
    push    r15
    push    rdi

    cmp     rsp, [rdx]
    je      1f
    mov     [rdx], rsp
    mov     eax, 0x6c14
    vmwrite rax, rsp
1:
    # MOV changes no flags: ZF stays for the branch below.
    test    rsi, rsi
    mov     rax, [rdi]
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
    jz      2f
    vmresume
    jmp     3f
2:  vmlaunch
3:  # Only a failure comes here; RSP is still ours.
    mov     eax, 1
    add     rsp, 8
    jmp     4f

.global vmx_exited
vmx_exited:
    push    rdi
    mov     rdi, [rsp + 8]
    mov     [rdi], rax
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
    add     rsp, 8
    xor     eax, eax

    # The hypervisor must not speculate on, or by mistake use, what a guest left.
4:  xor     ecx, ecx
    xor     edx, edx
    xor     esi, esi
    xor     edi, edi
    xor     r8d, r8d
    xor     r9d, r9d
    xor     r10d, r10d
    xor     r11d, r11d
    pop     r15
    pop     r14
    pop     r13
    pop     r12
    pop     rbx
    pop     rbp
    ret
.size vmx_run, . - vmx_run
