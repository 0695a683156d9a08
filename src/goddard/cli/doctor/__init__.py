"""``goddard doctor``: looks at a cluster twice, and says what is wrong and what to do.

``look`` asks the servers, ``checks`` decides (pure), ``report`` prints.
"""
