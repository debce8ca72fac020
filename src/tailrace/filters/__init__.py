"""Message filters by expression (SQL92): parsing, evaluation, and the expressions of consumer groups.

    compilation      compiled expressions, remembered by their text
    sql_expression   an expression as a function of property values
    sql_grammar      the text of an expression as calls of a builder
    java_numbers     how Java reads numbers in text
    subscriptions    the expression of a group for a topic
    message_filters  the filter of one pull: the properties that it needs, and whether a message matches
    retry_owner      the messages of one group in a retry topic whose name several have
    consumer_filters expressions of groups by topic: ``consumerFilter.json``
    bloom            positions that a Java broker keeps with an expression
"""
