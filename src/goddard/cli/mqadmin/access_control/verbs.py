"""Verbs about users and rules (5.x) and accounts (4.x)."""

from typing import Final

from goddard.cli.mqadmin.declare import Verb, flag, needed

VERBS: Final = (
    Verb(
        "createUser",
        "Create a user.",
        "access_control.users.create_user",
        (
            flag("c", "clusterName", "Name of a cluster."),
            flag("b", "brokerAddr", "Address of a broker, or its name."),
            needed("u", "username", "Name of a user."),
            needed("p", "password", "Password of the user."),
            flag("t", "userType", "Super or Normal."),
        ),
        one_of=("c b",),
    ),
    Verb(
        "updateUser",
        "Change a user.",
        "access_control.users.update_user",
        (
            flag("c", "clusterName", "Name of a cluster."),
            flag("b", "brokerAddr", "Address of a broker, or its name."),
            needed("u", "username", "Name of a user."),
            flag("p", "password", "Password of the user."),
            flag("t", "userType", "Super or Normal."),
            flag("s", "userStatus", "enable or disable."),
        ),
        one_of=(
            "p t s",
            "c b",
        ),
    ),
    Verb(
        "deleteUser",
        "Delete a user.",
        "access_control.users.delete_user",
        (
            flag("c", "clusterName", "Name of a cluster."),
            flag("b", "brokerAddr", "Address of a broker, or its name."),
            needed("u", "username", "Name of a user."),
        ),
        one_of=("c b",),
    ),
    Verb(
        "getUser",
        "Print a user.",
        "access_control.users.get_user",
        (
            flag("b", "brokerAddr", "Address of a broker, or its name."),
            flag("c", "clusterName", "Name of a cluster."),
            flag("u", "username", "Name of a user."),
        ),
        one_of=("b c",),
    ),
    Verb(
        "listUser",
        "List users.",
        "access_control.users.list_users",
        (
            flag("b", "brokerAddr", "Address of a broker, or its name."),
            flag("c", "clusterName", "Name of a cluster."),
            flag("f", "filter", "Only users whose names contain this."),
        ),
        one_of=("b c",),
    ),
    Verb(
        "copyUser",
        "Copy users to another broker.",
        "access_control.users.copy_users",
        (
            needed("f", "fromBroker", "Address of the source broker."),
            needed("t", "toBroker", "Address of the target broker."),
            flag("u", "usernames", "Names of users, separated by commas; otherwise all."),
        ),
    ),
    Verb(
        "createAcl",
        "Give a user rights.",
        "access_control.users.create_acl",
        (
            flag("c", "clusterName", "Name of a cluster."),
            flag("b", "brokerAddr", "Address of a broker, or its name."),
            needed("s", "subject", "Whom the rules are for: User:NAME."),
            needed("r", "resources", "Resources, such as Topic:orders,Group:*."),
            needed("a", "actions", "Actions: Pub,Sub,Create,Update,Delete,Get,List,Any,All."),
            flag("i", "sourceIp", "Client addresses the rule is for."),
            needed("d", "decision", "Allow or Deny."),
        ),
        one_of=("c b",),
    ),
    Verb(
        "updateAcl",
        "Change the rights of a user.",
        "access_control.users.update_acl",
        (
            flag("c", "clusterName", "Name of a cluster."),
            flag("b", "brokerAddr", "Address of a broker, or its name."),
            needed("s", "subject", "Whom the rules are for: User:NAME."),
            needed("r", "resources", "Resources, such as Topic:orders,Group:*."),
            needed("a", "actions", "Actions: Pub,Sub,Create,Update,Delete,Get,List,Any,All."),
            needed("d", "decision", "Allow or Deny."),
            flag("i", "sourceIp", "Client addresses the rule is for."),
        ),
        one_of=("c b",),
    ),
    Verb(
        "deleteAcl",
        "Delete the rights of a user.",
        "access_control.users.delete_acl",
        (
            flag("c", "clusterName", "Name of a cluster."),
            flag("b", "brokerAddr", "Address of a broker, or its name."),
            needed("s", "subject", "Whom the rules are for: User:NAME."),
            flag("r", "resources", "Resources, such as Topic:orders,Group:*."),
        ),
        one_of=("c b",),
    ),
    Verb(
        "getAcl",
        "Print the rights of a user.",
        "access_control.users.get_acl",
        (
            flag("b", "brokerAddr", "Address of a broker, or its name."),
            flag("c", "clusterName", "Name of a cluster."),
            flag("s", "subject", "Whom the rules are for: User:NAME."),
        ),
        one_of=("b c",),
    ),
    Verb(
        "listAcl",
        "List the rights of users.",
        "access_control.users.list_acls",
        (
            flag("b", "brokerAddr", "Address of a broker, or its name."),
            flag("c", "clusterName", "Name of a cluster."),
            flag("s", "subject", "Whom the rules are for: User:NAME."),
            flag("r", "resource", "One resource, or a part of its name."),
        ),
        one_of=("b c",),
    ),
    Verb(
        "copyAcl",
        "Copy rights to another broker.",
        "access_control.users.copy_acls",
        (
            needed("f", "fromBroker", "Address of the source broker."),
            needed("t", "toBroker", "Address of the target broker."),
            flag("s", "subjects", "Subjects, separated by commas; otherwise all."),
        ),
    ),
    Verb(
        "updateAclConfig",
        "Create or change an account (4.x).",
        "access_control.access_keys.update_access_key",
        (
            needed("a", "accessKey", "Access key of the account."),
            flag("b", "brokerAddr", "Address of a broker, or its name."),
            flag("c", "clusterName", "Name of a cluster."),
            flag("s", "secretKey", "Secret key of the account."),
            flag("t", "topicPerms", "Permissions of topics: a=DENY,b=SUB."),
            flag("u", "defaultGroupPerm", "Permission for groups that are not named."),
            flag("w", "whiteRemoteAddress", "Addresses that need no signature."),
            flag("g", "groupPerms", "Permissions of groups: a=DENY,b=SUB."),
            flag("i", "defaultTopicPerm", "Permission for topics that are not named."),
            flag("m", "admin", "Whether it is an administrator: true or false."),
        ),
        one_of=("b c",),
    ),
    Verb(
        "deleteAclConfig",
        "Delete an account (4.x).",
        "access_control.access_keys.delete_access_key",
        (
            needed("a", "accessKey", "Access key of the account."),
            flag("b", "brokerAddr", "Address of a broker, or its name."),
            flag("c", "clusterName", "Name of a cluster."),
        ),
        one_of=("b c",),
        alias="deleteAccessConfig",
    ),
    Verb(
        "clusterAclConfigVersion",
        "Print the versions of the accounts (4.x).",
        "access_control.access_keys.access_key_versions",
        (
            flag("b", "brokerAddr", "Address of a broker, or its name."),
            flag("c", "clusterName", "Name of a cluster."),
        ),
        one_of=("b c",),
    ),
    Verb(
        "updateGlobalWhiteAddr",
        "Set the addresses that need no account (4.x).",
        "access_control.access_keys.update_white_addresses",
        (
            flag("p", "aclFileFullPath", "File on the broker to change."),
            flag("b", "brokerAddr", "Address of a broker, or its name."),
            flag("c", "clusterName", "Name of a cluster."),
            needed("g", "globalWhiteRemoteAddresses", "Addresses, separated by commas."),
        ),
        one_of=("b c",),
    ),
    Verb(
        "getAclConfig",
        "List accounts (4.x).",
        "access_control.access_keys.get_access_keys",
        (
            flag("b", "brokerAddr", "Address of a broker, or its name."),
            flag("c", "clusterName", "Name of a cluster."),
        ),
        one_of=("b c",),
        alias="getAccessConfigSubCommand",
    ),
)
