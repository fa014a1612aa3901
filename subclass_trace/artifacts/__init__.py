"""Descriptions of specializations outside of a process: files that a user saves and loads, and a
directory that is a cache.

Nothing here traces, compares or guards: that is `data` and `runtime.bind`. What is kept here is
found by a name, read whole, and handed to those; each defect of a file of the cache is a miss.

============  ===========================================================================
`container`   descriptions <-> the bytes of a file: JSON, compressed, and safetensors
`identity`    what a file belongs to: versions, libraries, rank; the key of a cache; what cannot be
              told
`source`      what a file or a cache is to a region
`saved`       a file that a user saves and loads
`directory`   files by name in a directory that is ours alone: atomic, bounded, torn by nobody
`cache`       the cache of a region, in such a directory
`graph_cache` the same for partitions, which are found by a traced graph
`commands`    ``subclass-trace cache``
============  ===========================================================================
"""
