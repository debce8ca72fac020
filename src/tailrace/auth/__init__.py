"""Access control 2.0: users, permissions, signatures, and the check of requests. Rules only, without files.

    access = AccessControl(config, users.get, acls.get)
    access.check(channel, request)             # RefusalError with NO_PERMISSION (16), or nothing

The rules are those of RocketMQ 5.5.0. ``docs/how-to/operate/users.md`` lists the places where Tailrace is stricter.
"""
