"""A specialization as data: everything that it is, but for its compiled graphs, as a closed, plain
description.

`describe` writes one as what JSON can hold; `read` and `runtime.bind` make it a specialization
again, in this process or
another: places are found, compared, the entry is generated, the graphs are compiled. Nothing of a
description is run, and no
module is imported for one: things are looked up by name among what is loaded, and compared with a
fingerprint.

What can be neither written as data nor reached by a place is a `Gap` with its path; such a
specialization works, and is not portable.

==============  =======================================================================
`objects`       things that have a name (classes, functions, operations), fingerprints
`vocabulary`    values: literals, containers, records, expressions over symbols
`places`        places, rows, and the guards that are made of them
`graphs`        lists of nodes, with what is known of their values
`describe`      a specialization -> data;  data -> the parts of one
`differences`   what two descriptions say that is not the same
==============  =======================================================================
"""
