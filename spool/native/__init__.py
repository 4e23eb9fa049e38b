"""Compiled hot loops, memory by address, and a question to the kernel. All of it is below the rest of bruce.

    memory      loads, stores, copies and calls by address, for loops that run over shared memory
    kernel      the decorator `kernel`: a function that is compiled when it is first called; `subkernel`:
                one that only such functions call
    intrinsics  the operations of `memory` as LLVM has them, and how compiled code on disk is known to be of
                this release; imported when the first loop is compiled
    digest      XXH3, 64 bits: the digest of the log
    libc        the time, and bells: system calls that loops make
    peers       which user made the socket at the other end of a TCP connection

Read `memory`, then `kernel`. Every package may import from here.

    @kernel
    def first_byte(address: int) -> int:
        return load_u8(address)
"""
