"""Mount a folder in another place, where changes by others are seen late and locks hold here only, as NFS may do.

    python late_folder.py SOURCE PLACE SECONDS

Names, missing names and attributes are believed for so many seconds, as by an NFS client (``acregmax``).
"""

import errno
import os
import sys
from pathlib import Path

import mfusepy


class Folder(mfusepy.Operations):
    """Every operation on a path is that on the path below the source."""

    use_ns = True

    def __init__(self, source):
        self.source = Path(source)

    def _below(self, path):
        return str(self.source) + path

    def getattr(self, path, fh=None):
        found = os.lstat(self._below(path))
        values = {name: getattr(found, name) for name in dir(found) if name.startswith("st_")}
        return values | {name: values[f"{name}_ns"] for name in ("st_atime", "st_mtime", "st_ctime")}

    def readdir(self, path, fh):
        return [".", "..", *os.listdir(self._below(path))]

    def statfs(self, path):
        found = os.statvfs(self._below(path))
        return {name: getattr(found, name) for name in dir(found) if name.startswith("f_") and name != "f_fsid"}

    def access(self, path, amode):
        if not os.access(self._below(path), amode):
            raise mfusepy.FuseOSError(errno.EACCES)

    def open(self, path, flags):
        return os.open(self._below(path), flags)

    def create(self, path, mode, fi=None):
        return os.open(self._below(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)

    def read(self, path, size, offset, fh):
        return os.pread(fh, size, offset)

    def write(self, path, data, offset, fh):
        return os.pwrite(fh, data, offset)

    def flush(self, path, fh):
        return 0

    def fsync(self, path, datasync, fh):
        os.fsync(fh)

    def release(self, path, fh):
        os.close(fh)

    def truncate(self, path, length, fh=None):
        os.truncate(self._below(path), length)

    def rename(self, old, new):
        os.rename(self._below(old), self._below(new))

    def link(self, target, source):
        os.link(self._below(source), self._below(target))

    def symlink(self, target, source):
        os.symlink(source, self._below(target))

    def readlink(self, path):
        return os.readlink(self._below(path))

    def unlink(self, path):
        os.unlink(self._below(path))

    def mkdir(self, path, mode):
        os.mkdir(self._below(path), mode)

    def rmdir(self, path):
        os.rmdir(self._below(path))

    def chmod(self, path, mode):
        os.chmod(self._below(path), mode)

    def utimens(self, path, times=None):
        os.utime(self._below(path), ns=times)


if __name__ == "__main__":
    source, place, seconds = sys.argv[1:]
    late = {f"{name}_timeout": float(seconds) for name in ("entry", "negative", "attr")}
    mfusepy.FUSE(Folder(source), place, foreground=True, nothreads=False, **late)
