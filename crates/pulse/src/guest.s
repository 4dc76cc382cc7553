# A guest without an operating system, for live migration: it beats, writes to its memory and its disk, and proves both.
#
# QEMU loads it as a multiboot kernel (-kernel), at 1 MiB. It idles between beats, so it takes little of a processor. It runs in long mode,
# with all memory that it uses mapped to itself by pages of 2 MiB, and so reaches what a PC has beyond 4 GiB.
#
#   offset  what QEMU's user sets (image.rs)
#   0x20    pages of 4 KiB that are filled, from 4 MiB on; from where memory below 4 GiB ends they go on at 4 GiB
#   0x24    pages that are written to at each beat
#   0x28    1: at random; 0: one after the other
#   0x2c    1: a sector of the first IDE disk is written at every eighth beat (-machine pc)
#
# On the serial line, hexadecimal:
#
#   R                              filled, from here on it beats, 100 times a second
#   H 00000012 00000480            beat 0x12, 0x480 pages written to so far
#   V 00000000 00000480 00000480   an answer to `v`: bad pages, writes found in the pages, writes counted
#
# Page p holds p, the number of writes to it, a stream that does not compress, and p xor that number at its end. So one page that
# is older than its guest is found: the writes do not add up. The beat's number is in a page that is written to all the time.
#
# All addresses are written out, and labels begin with .L: nothing is left for a linker to do, nor to see.
#
#   0x200000  beats, 0x200004 writes, 0x200008 the next page in order, 0x20000c chance, 0x200014 the timer's word, 0x200018 sectors written,
#             0x20001c pages below 4 GiB, 0x200040 what lidt reads
#   0x201000  interrupts
#   0x203000  page tables: level 4, level 3, and from 0x205000 on one of level 2 for each GiB, 507 at most

# The next number of a page's stream, in eax; edx is used up.
.macro next_of_stream
    mov edx, eax
    shl edx, 13
    xor eax, edx
    mov edx, eax
    shr edx, 17
    xor eax, edx
    mov edx, eax
    shl edx, 5
    xor eax, edx
.endm

.pushsection .rodata.drover_pulse_guest, "a", @progbits
.globl drover_pulse_guest
.hidden drover_pulse_guest
.type drover_pulse_guest, @object
.code32
drover_pulse_guest:
    .long 0x1badb002, 0x00010002, 0xe4514ffc       # multiboot: magic, memory is told and addresses follow, check
    .long 0x100000, 0x100000, 0, 0, 0x100080       # header, load, to the end of the file, no bss, entry
.org 0x20
    .long 1024, 0, 0, 0                            # pages, pages per beat, random, disk
.org 0x40
    .quad 0, 0x00cf9a000000ffff, 0x00cf92000000ffff, 0x00af9a000000ffff
.org 0x60
    .short 31
    .long 0x100040

.org 0x80                                          # ebx: what QEMU tells
    cli
    lgdt [0x100060]
    mov eax, 16
    mov ds, eax
    mov es, eax
    mov ss, eax
    mov edi, 0x200000                              # what it counts, interrupts, page tables but those of level 2
    xor eax, eax
    mov ecx, 5120
    rep stosd
    mov edx, [ebx + 8]                             # KiB of memory from 1 MiB on, up to the first hole
    shr edx, 2
    sub edx, 768
    mov [0x20001c], edx
    mov ecx, [0x100020]                            # GiB up to the last page
    cmp ecx, edx
    jbe .Lbelow
    sub ecx, edx
    add ecx, 0x100000 - 1024
.Lbelow:
    add ecx, 1024
    dec ecx
    shr ecx, 18
    inc ecx
    mov dword ptr [0x203000], 0x204003
    xor esi, esi
.Ltables:
    mov eax, esi
    shl eax, 12
    add eax, 0x205003
    mov [0x204000 + esi * 8], eax
    inc esi
    cmp esi, ecx
    jb .Ltables
    shl ecx, 9
    xor esi, esi
.Lentries:
    mov eax, esi
    shl eax, 21
    or eax, 0x83
    mov [0x205000 + esi * 8], eax
    mov eax, esi
    shr eax, 11
    mov [0x205004 + esi * 8], eax
    inc esi
    cmp esi, ecx
    jb .Lentries
    mov eax, cr4
    or eax, 0x20                                   # PAE
    mov cr4, eax
    mov eax, 0x203000
    mov cr3, eax
    mov ecx, 0xc0000080
    rdmsr
    or eax, 0x100                                  # long mode
    wrmsr
    mov eax, cr0
    or eax, 0x80000000                             # paging
    mov cr0, eax
    .byte 0xea                                     # far jump: the segment of 64 bits
    .long 0x100180
    .short 24
.org 0x180
.code64
    mov esp, 0x1ff000
    mov dword ptr [0x20000c], 0x2545f491           # chance

    # The timer interrupts 100 times a second, as number 0x20; nothing else does.
    mov dword ptr [0x201200], 0x00180400
    mov dword ptr [0x201204], 0x00108e00
    mov word ptr [0x200040], 0xfff
    mov dword ptr [0x200042], 0x201000
    lidt [0x200040]
    mov al, 0x11
    out 0x20, al
    mov al, 0x20
    out 0x21, al
    mov al, 4
    out 0x21, al
    mov al, 1
    out 0x21, al
    mov al, 0xfe
    out 0x21, al
    mov al, 0xff
    out 0xa1, al
    mov al, 0x34
    out 0x43, al
    mov al, 0x9c                                   # 1193182 Hz / 100 = 0x2e9c
    out 0x40, al
    mov al, 0x2e
    out 0x40, al

    # Serial line: no interrupts, 8 bits.
    mov dx, 0x3f9
    xor eax, eax
    out dx, al
    mov dx, 0x3fb
    mov al, 3
    out dx, al

    # Pages.
    xor esi, esi
.Lfill:
    cmp esi, [0x100020]
    jae .Lfilled
    call .Lplace
    mov [rdi], esi
    mov dword ptr [rdi + 4], 0
    imul eax, esi, 0x1e3779b1
    or eax, 1
    mov ecx, 2
.Lstream:
    next_of_stream
    mov [rdi + rcx * 4], eax
    inc ecx
    cmp ecx, 1023
    jb .Lstream
    mov [rdi + 4092], esi
    inc esi
    jmp .Lfill
.Lfilled:
    mov al, 0x52
    call .Lput
    mov al, 10
    call .Lput
    sti

.Lbeat:
    hlt
    cmp dword ptr [0x200014], 0                    # the timer's
    je .Llisten
    mov dword ptr [0x200014], 0
    inc dword ptr [0x200000]
    mov al, 0x48
    call .Lput
    mov eax, [0x200000]
    call .Lnumber
    mov eax, [0x200004]
    call .Lnumber
    mov al, 10
    call .Lput
    call .Lwrite_pages
    cmp dword ptr [0x10002c], 0
    je .Llisten
    test dword ptr [0x200000], 7
    jnz .Llisten
    call .Lwrite_sector
.Llisten:
    mov dx, 0x3fd
    in al, dx
    test al, 1
    jz .Lbeat
    mov dx, 0x3f8
    in al, dx
    cmp al, 0x76
    jne .Lbeat
    call .Lverify
    jmp .Lbeat

.org 0x400
.Ltick:                                            # 0x100400
    push rax
    mov dword ptr [0x200014], 1
    mov al, 0x20
    out 0x20, al
    pop rax
    iretq

.Lplace:                                           # rdi: where page esi is
    mov edi, esi
    cmp esi, [0x20001c]
    jb .Lnear
    sub edi, [0x20001c]
    add edi, 0x100000 - 1024
.Lnear:
    shl rdi, 12
    add rdi, 0x400000
    ret

.Lput:                                             # al
    push rdx
    push rax
    mov dx, 0x3fd
.Lbusy:
    in al, dx
    test al, 0x20
    jz .Lbusy
    pop rax
    mov dx, 0x3f8
    out dx, al
    pop rdx
    ret

.Lnumber:                                          # a space and eax
    push rbx
    push rcx
    mov ebx, eax
    mov al, 0x20
    call .Lput
    mov ecx, 8
.Ldigit:
    rol ebx, 4
    mov eax, ebx
    and eax, 15
    cmp eax, 10
    jb .Ldecimal
    add eax, 39
.Ldecimal:
    add eax, 48
    call .Lput
    dec ecx
    jnz .Ldigit
    pop rcx
    pop rbx
    ret

.Lwrite_pages:
    mov ecx, [0x100024]
.Lanother:
    test ecx, ecx
    jz .Lwritten
    cmp dword ptr [0x100028], 0
    je .Lfollowing
    mov eax, [0x20000c]
    imul eax, eax, 1664525
    add eax, 1013904223
    mov [0x20000c], eax
    shr eax, 8
    jmp .Lchosen
.Lfollowing:
    mov eax, [0x200008]
    inc dword ptr [0x200008]
.Lchosen:
    xor edx, edx
    div dword ptr [0x100020]
    mov esi, edx
    call .Lplace
    inc dword ptr [rdi + 4]
    mov eax, [rdi + 4]
    xor eax, [rdi]
    mov [rdi + 4092], eax
    inc dword ptr [0x200004]
    dec ecx
    jmp .Lanother
.Lwritten:
    ret

.Lwrite_sector:                                    # sector 1 + beat / 8 % 1024 holds the beat's number
    mov dx, 0x1f7
.Lidle:
    in al, dx
    test al, 0x80
    jnz .Lidle
    mov ebx, [0x200000]
    shr ebx, 3
    and ebx, 1023
    inc ebx
    mov dx, 0x1f6
    mov al, 0xe0
    out dx, al
    mov dx, 0x1f2
    mov al, 1
    out dx, al
    mov dx, 0x1f3
    mov al, bl
    out dx, al
    mov dx, 0x1f4
    mov al, bh
    out dx, al
    mov dx, 0x1f5
    xor eax, eax
    out dx, al
    mov dx, 0x1f7
    mov al, 0x30
    out dx, al
.Lready:
    in al, dx
    test al, 0x80
    jnz .Lready
    test al, 8
    jz .Lready
    mov ecx, 128
    mov dx, 0x1f0
.Lwords:
    mov eax, [0x200000]
    out dx, eax
    dec ecx
    jnz .Lwords
    inc dword ptr [0x200018]
    ret

.Lverify:                                          # ebx: bad pages, ebp: writes in pages
    xor ebx, ebx
    xor ebp, ebp
    xor esi, esi
.Lpage:
    cmp esi, [0x100020]
    jae .Lverified
    call .Lplace
    add ebp, [rdi + 4]
    xor ecx, ecx
    cmp [rdi], esi
    setne cl
    mov eax, [rdi + 4]
    xor eax, esi
    cmp eax, [rdi + 4092]
    je .Lwhole
    mov ecx, 1
.Lwhole:
    imul eax, esi, 0x1e3779b1
    or eax, 1
    mov r8d, 2
.Lagain:
    next_of_stream
    cmp [rdi + r8 * 4], eax
    je .Lsame
    mov ecx, 1
.Lsame:
    inc r8d
    cmp r8d, 1023
    jb .Lagain
    add ebx, ecx
    inc esi
    jmp .Lpage
.Lverified:
    mov al, 0x56
    call .Lput
    mov eax, ebx
    call .Lnumber
    mov eax, ebp
    call .Lnumber
    mov eax, [0x200004]
    call .Lnumber
    mov al, 10
    call .Lput
    ret
.org 0x1000
.size drover_pulse_guest, 0x1000
.popsection
