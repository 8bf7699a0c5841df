"""How much of what somebody else made is read: bytes, values, parts and seconds, by the kind of
source. Errors name the number. Largest known: a plan of 100,000 nodes has 70 MB and 9 million
values, a model's header 20 MiB and 800,000 strings."""

from __future__ import annotations

TEXT = 128 << 20  # bytes of a plan, run, log, list or profile, also when decompressed
WITHOUT_SIZE = 64 << 20  # of a file that reports a size of 0, as those of /proc do; some never end
RECORD = 4 << 30  # `record --max-size` is 1 GiB for each process
MACHINE = 64 << 20
TABLE = 16 << 20  # of a profile's answers and of op tests; each has some 150 bytes
LIST = 1 << 20  # of cases, and of patterns
LINES = 1 << 22  # of a text
LINE = 1 << 16  # characters of one line
MEMBERS = 16  # of a gzip file: files may follow one another
VALUES = 1 << 24  # of JSON; a value takes up to 90 bytes of memory, a key 140

HEADER = 128 << 20  # bytes of a model's header, at an address with those of all parts
HEADER_STRINGS = 1 << 21  # in arrays, all together
PARTS = 1000  # of a split model

REDIRECTS = 10
SECONDS = 8  # until a server answers
SLOWEST = 4096  # bytes per second that a server sends, over `SECONDS` and more

TEMPLATE_SECONDS = 3  # of computing; chat templates take milliseconds
TEMPLATE_BYTES = 512 << 20
