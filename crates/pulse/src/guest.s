# A guest without an operating system, for live migration: it beats, writes to its memory and its disk, and proves both.
#
# QEMU loads it as a multiboot kernel (-kernel), at 1 MiB. It idles between beats, so it takes little of a processor.
#
#   offset  what QEMU's user sets (image.rs)
#   0x20    pages of 4 KiB that are filled, from 4 MiB on
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
.pushsection .rodata.drover_pulse_guest, "a", @progbits
.globl drover_pulse_guest
.hidden drover_pulse_guest
.type drover_pulse_guest, @object
.code32
drover_pulse_guest:
    .long 0x1badb002, 0x00010000, 0xe4514ffe       # multiboot: magic, addresses follow, check
    .long 0x100000, 0x100000, 0, 0, 0x100060       # header, load, to the end of the file, no bss, entry
.org 0x20
    .long 1024, 0, 0, 0                            # pages, pages per beat, random, disk
.org 0x40
    .quad 0, 0x00cf9a000000ffff, 0x00cf92000000ffff
.org 0x58
    .short 23
    .long 0x100040

.org 0x60
.Lentry:
    cli
    lgdt [0x100058]
    .byte 0xea                                     # far jump: the segments of this table
    .long 0x100080
    .short 8
.org 0x80
    mov eax, 16
    mov ds, eax
    mov es, eax
    mov ss, eax
    mov esp, 0x1ff000
    mov edi, 0x200000                              # what it counts, and the interrupt table
    xor eax, eax
    mov ecx, 2048
    rep stosd
    mov dword ptr [0x20000c], 0x2545f491           # chance

    # The timer interrupts 100 times a second, as number 0x20; nothing else does.
    mov dword ptr [0x201100], 0x00080300
    mov dword ptr [0x201104], 0x00108e00
    mov word ptr [0x200040], 0x7ff
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
    mov edi, 0x400000
.Lfill:
    cmp esi, [0x100020]
    jae .Lfilled
    mov [edi], esi
    mov dword ptr [edi + 4], 0
    imul eax, esi, 0x1e3779b1
    or eax, 1
    mov ecx, 2
.Lstream:
    mov edx, eax
    shl edx, 13
    xor eax, edx
    mov edx, eax
    shr edx, 17
    xor eax, edx
    mov edx, eax
    shl edx, 5
    xor eax, edx
    mov [edi + ecx * 4], eax
    inc ecx
    cmp ecx, 1023
    jb .Lstream
    mov [edi + 4092], esi
    add edi, 4096
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

.org 0x300
.Ltick:                                              # 0x100300
    push eax
    mov dword ptr [0x200014], 1
    mov al, 0x20
    out 0x20, al
    pop eax
    iretd

.Lput:                                               # al
    push edx
    push eax
    mov dx, 0x3fd
.Lbusy:
    in al, dx
    test al, 0x20
    jz .Lbusy
    pop eax
    mov dx, 0x3f8
    out dx, al
    pop edx
    ret

.Lnumber:                                            # a space and eax
    push ebx
    push ecx
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
    pop ecx
    pop ebx
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
    mov edi, edx
    shl edi, 12
    add edi, 0x400000
    inc dword ptr [edi + 4]
    mov eax, [edi + 4]
    xor eax, [edi]
    mov [edi + 4092], eax
    inc dword ptr [0x200004]
    dec ecx
    jmp .Lanother
.Lwritten:
    ret

.Lwrite_sector:                                      # sector 1 + beat / 8 % 1024 holds the beat's number
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

.Lverify:                                            # ebx: bad pages, ebp: writes in pages
    xor ebx, ebx
    xor ebp, ebp
    xor esi, esi
    mov edi, 0x400000
.Lpage:
    cmp esi, [0x100020]
    jae .Lverified
    add ebp, [edi + 4]
    xor ecx, ecx
    cmp [edi], esi
    setne cl
    mov eax, [edi + 4]
    xor eax, esi
    cmp eax, [edi + 4092]
    je .Lwhole
    mov ecx, 1
.Lwhole:
    imul eax, esi, 0x1e3779b1
    or eax, 1
    push ebp
    mov ebp, 2
.Lagain:
    mov edx, eax
    shl edx, 13
    xor eax, edx
    mov edx, eax
    shr edx, 17
    xor eax, edx
    mov edx, eax
    shl edx, 5
    xor eax, edx
    cmp [edi + ebp * 4], eax
    je .Lsame
    mov ecx, 1
.Lsame:
    inc ebp
    cmp ebp, 1023
    jb .Lagain
    pop ebp
    add ebx, ecx
    add edi, 4096
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
.code64
.popsection
