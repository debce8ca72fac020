"""Two tables of Apache Iceberg over an archive: ``raw`` has its rows, ``messages`` what an analyst needs.

Tasks read archived segments and write Parquet; the driver commits with PyIceberg. A property of a table says for each
broker up to which segment its rows are there. The property changes in the same commit that adds the rows.
"""
