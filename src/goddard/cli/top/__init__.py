"""``goddard top``: a live view of brokers, topics and groups.

``reading`` asks the cluster, ``tables`` computes rates and rows from two readings, ``screen`` keeps
what the user chose and draws it, and ``command`` runs them in the terminal.
"""
