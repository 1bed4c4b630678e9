"""The analytics report: what a cluster's data costs, and how much of it is dead.

From the log to the page, each step in a module of its own:

    window        the stretch of time, cut into buckets
    cube          the shape of a count, and how counts are merged
    first_pass    log starts, removed objects            } per piece of the log, wherever Spark
    counting      written, live and dead bytes           } or this process reads it
    cluster       the history of brokers and leaders, read in order
    job           runs these; tables work out shares, percentiles and money
    summary       the numbers and sentences of the first screen
    figures       plots, page and style: drawn from tables alone
    writing       the files

Only `spark_cube` needs Spark, only `plots` needs matplotlib.
"""
