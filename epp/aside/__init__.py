"""Bodies that take long to read are read in another process.

A million token ids, or a body made to be dear, take a tenth of a second and more to decode, and
nothing else could go on meanwhile: a thread would not help, since a decoder does not let go of
the interpreter. So there is a child process, started by the first such body. It sees what a parser
sees and answers what a parser answers; it may take a second and a gigabyte, and no more.

Files: `child` (the process), `reader` (its owner), `letters` (what goes between them).
"""
