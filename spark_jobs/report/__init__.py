"""The analytics report: what a cluster's data costs, and where it rots.

From the log to the page, each step in a module of its own:

    window        the stretch of time, cut into buckets
    cube          the shape of a count, and how counts are merged
    first_pass    where logs start, and what is gone      } per piece of the log, wherever Spark
    counting      what was written, what is left of it    } or this process reads it
    cluster       who served, who led: in order, once
    job           runs these; tables work out shares, percentiles and money
    summary       the numbers and sentences of the first screen
    figures       plots, page and style: drawn from tables alone
    writing       the files

Only `spark_cube` needs Spark, only `plots` needs matplotlib.
"""
