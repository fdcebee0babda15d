/* The exported names. Each is a jump through its slot of vcuda_table; arguments, variadic ones too, stay where they
 * are. A slot starts at its binder, which asks vcuda_bind() where to go and goes there with all arguments restored. */

#if defined(__x86_64__)

    .macro TRAMPOLINE name index
    .globl \name
    .type \name, @function
    .p2align 4
\name:
    endbr64
    jmp *vcuda_table+8*\index(%rip)
    .size \name, .-\name
    .endm

    .macro BINDER index
.Lbinder\index:
    endbr64
    pushq $\index
    jmp bind_common
    .endm

    .macro SLOT index
    .quad .Lbinder\index
    .endm

    .text
/* Entered with the name's number pushed on top of the return address. */
    .type bind_common, @function
bind_common:
    .cfi_startproc
    .cfi_def_cfa_offset 16
    pushq %rbp
    .cfi_def_cfa_offset 24
    .cfi_offset %rbp, -24
    movq %rsp, %rbp
    .cfi_def_cfa_register %rbp
    pushq %rdi
    pushq %rsi
    pushq %rdx
    pushq %rcx
    pushq %r8
    pushq %r9
    pushq %rax              /* al: number of vector registers of a variadic call */
    pushq %r10
    subq $128, %rsp
    movups %xmm0, 0(%rsp)
    movups %xmm1, 16(%rsp)
    movups %xmm2, 32(%rsp)
    movups %xmm3, 48(%rsp)
    movups %xmm4, 64(%rsp)
    movups %xmm5, 80(%rsp)
    movups %xmm6, 96(%rsp)
    movups %xmm7, 112(%rsp)
    movl 8(%rbp), %edi
    andq $-16, %rsp
    call vcuda_bind
    movq %rax, %r11
    leaq -192(%rbp), %rsp
    movups 0(%rsp), %xmm0
    movups 16(%rsp), %xmm1
    movups 32(%rsp), %xmm2
    movups 48(%rsp), %xmm3
    movups 64(%rsp), %xmm4
    movups 80(%rsp), %xmm5
    movups 96(%rsp), %xmm6
    movups 112(%rsp), %xmm7
    addq $128, %rsp
    popq %r10
    popq %rax
    popq %r9
    popq %r8
    popq %rcx
    popq %rdx
    popq %rsi
    popq %rdi
    popq %rbp
    .cfi_def_cfa %rsp, 16
    addq $8, %rsp
    .cfi_def_cfa_offset 8
    jmp *%r11
    .cfi_endproc
    .size bind_common, .-bind_common

#elif defined(__aarch64__)

    .macro TRAMPOLINE name index
    .globl \name
    .type \name, %function
    .p2align 4
\name:
    hint #34                /* bti c */
    adrp x16, vcuda_table+8*\index
    ldr x16, [x16, :lo12:vcuda_table+8*\index]
    br x16
    .size \name, .-\name
    .endm

    .macro BINDER index
.Lbinder\index:
    hint #34
    mov w17, #\index
    b bind_common
    .endm

    .macro SLOT index
    .quad .Lbinder\index
    .endm

    .text
/* Entered with the name's number in w17. */
    .type bind_common, %function
bind_common:
    .cfi_startproc
    stp x29, x30, [sp, #-224]!
    .cfi_def_cfa_offset 224
    .cfi_offset x29, -224
    .cfi_offset x30, -216
    mov x29, sp
    stp x0, x1, [sp, #16]
    stp x2, x3, [sp, #32]
    stp x4, x5, [sp, #48]
    stp x6, x7, [sp, #64]
    str x8, [sp, #80]
    stp q0, q1, [sp, #96]
    stp q2, q3, [sp, #128]
    stp q4, q5, [sp, #160]
    stp q6, q7, [sp, #192]
    mov w0, w17
    bl vcuda_bind
    mov x16, x0
    ldp x0, x1, [sp, #16]
    ldp x2, x3, [sp, #32]
    ldp x4, x5, [sp, #48]
    ldp x6, x7, [sp, #64]
    ldr x8, [sp, #80]
    ldp q0, q1, [sp, #96]
    ldp q2, q3, [sp, #128]
    ldp q4, q5, [sp, #160]
    ldp q6, q7, [sp, #192]
    ldp x29, x30, [sp], #224
    .cfi_restore x29
    .cfi_restore x30
    .cfi_def_cfa_offset 0
    br x16
    .cfi_endproc
    .size bind_common, .-bind_common

#else
#error "no trampolines for this architecture"
#endif

#define NAME(name, index) BINDER index
#include "names.inc"
#undef NAME

    .globl vcuda_trampolines
    .hidden vcuda_trampolines
    .p2align 4
vcuda_trampolines:
#define NAME(name, index) TRAMPOLINE name, index
#include "names.inc"
#undef NAME
    .globl vcuda_trampolines_end
    .hidden vcuda_trampolines_end
vcuda_trampolines_end:

    .data
    .globl vcuda_table
    .hidden vcuda_table
    .p2align 7
vcuda_table:
#define NAME(name, index) SLOT index
#include "names.inc"
#undef NAME

    .section .note.GNU-stack, "", %progbits
