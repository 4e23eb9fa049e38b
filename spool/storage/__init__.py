"""Files and directories: the only place where bruce opens, maps, syncs, locks and renames them.

    disk         every call that may wait for a disk, with its errors as exceptions of `spool.errors`;
                 files as memory; quarantine, the folder for unusable bytes; weaknesses of a filesystem
    ownership    directories that are ours, and files in them that no other user can have planted
    lock         one process owns a directory
    ab_slots     a table in a file that is always whole: two slots, of which one is being written
    failpoint    named places where a test can kill a process
    parallel     several files read at once, their results in order

Read `disk`, then `ownership`. The folders of spool above `native` import from here, and so may other
packages.

    with opened(path) as fd:
        data = read_at(fd, 4096, 0)
"""
