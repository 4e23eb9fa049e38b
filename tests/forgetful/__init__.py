"""A filesystem for tests that forgets what was not synced, on real mounts, shared mappings included.

It speaks the kernel's own protocol over /dev/fuse: no library is needed, only root and the device. Without
them its tests are skipped; on CI (the variable CI is set) they fail.
"""
