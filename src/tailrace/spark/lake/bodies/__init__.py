"""Bodies as columns: schemas of JSON, Avro and Protobuf from files or a registry, and their values in Arrow.

    values      what all formats share: errors of a body, checks of ranges
    json_schema, avro, protobuf   a schema as columns, and the function that reads a body
    registry    schemas of a subject, by HTTP
    topics      the file that names the schema of each topic
    rows        rows of a typed table from rows of messages
"""
