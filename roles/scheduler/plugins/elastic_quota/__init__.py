"""ElasticQuota: fair shares of the cluster in a tree of quotas (SCH-EQ-01..13)."""
