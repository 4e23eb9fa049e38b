"""The log as data, on Spark: DataFrames over committed frames."""
