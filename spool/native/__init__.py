"""Compiled hot loops, memory by address, and a question to the kernel. All of it is below the rest of bruce.

    memory      loads, stores, copies and calls by address, for loops that run over shared memory
    kernel      the decorator `kernel`: a function that is compiled when it is first called; `subkernel`:
                one that only such functions call
    library     the machine code of all loops in one file; `loop`: how Python calls it
    intrinsics  the operations of `memory` as LLVM has them, and how Numba keeps loops of this release;
                imported when a loop is compiled
    linking     writes the library
    digest      XXH3, 64 bits: the digest of the log
    libc        the time, and bells: system calls that loops make
    peers       which user made the socket at the other end of a TCP connection

Read `memory`, `kernel`, then `library`. Every package may import from here.

    @kernel
    def first_byte(address: int) -> int:
        return load_u8(address)
"""
