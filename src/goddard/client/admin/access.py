"""Administration of who may do what: users and ACLs of 5.3 and later, access keys of 4.5 to 5.3.

Every function is a method of ``Admin``; see there. A docstring's brackets give the verb of mqadmin
and the request code. Brokers of the other generation refuse with REQUEST_CODE_NOT_SUPPORTED.
"""

from collections.abc import Iterable

from goddard.client import broker_api
from goddard.client.admin.requests import AdminLink, ask, ask_each, broker_address, chosen_brokers
from goddard.protocol.bodies import encode_body
from goddard.protocol.bodies_admin import AccessKey, AccessKeys, AclInfo, UserInfo
from goddard.protocol.codes import RequestCode
from goddard.protocol.headers_admin import (
    AclRequest,
    DeleteAccessKeyRequest,
    DeleteAclRequest,
    GetAccessInfoResponse,
    ListAclsRequest,
    ListUsersRequest,
    UpdateAccessKeyRequest,
    UpdateWhiteAddressesRequest,
    UserRequest,
)

# --- Users ----------------------------------------------------------------------------------------


async def create_user(
    admin: AdminLink,
    username: str,
    password: str,
    *,
    user_type: str = "Normal",
    cluster: str | None = None,
    broker: str | None = None,
) -> list[str]:
    """Make a user, ``Normal`` or ``Super``; gives the brokers' addresses [createUser, 3001]."""
    user = UserInfo(username=username, password=password, user_type=user_type)
    found = await chosen_brokers(admin, broker, cluster)
    header = UserRequest(username=username)
    return await ask_each(
        admin, found, RequestCode.AUTH_CREATE_USER, header, body=encode_body(user)
    )


async def update_user(
    admin: AdminLink,
    username: str,
    *,
    password: str | None = None,
    user_type: str | None = None,
    user_status: str | None = None,
    cluster: str | None = None,
    broker: str | None = None,
) -> list[str]:
    """Change a user's password, type or status, ``enable`` or ``disable`` [updateUser, 3002]."""
    user = UserInfo(
        username=username, password=password, user_type=user_type, user_status=user_status
    )
    found = await chosen_brokers(admin, broker, cluster)
    header = UserRequest(username=username)
    return await ask_each(
        admin, found, RequestCode.AUTH_UPDATE_USER, header, body=encode_body(user)
    )


async def delete_user(
    admin: AdminLink, username: str, *, cluster: str | None = None, broker: str | None = None
) -> list[str]:
    """Delete a user [deleteUser, 3003]."""
    found = await chosen_brokers(admin, broker, cluster)
    header = UserRequest(username=username)
    return await ask_each(admin, found, RequestCode.AUTH_DELETE_USER, header)


async def user(admin: AdminLink, username: str, *, broker: str) -> UserInfo | None:
    """A user; None if there is no such user [getUser, 3004]."""
    address = await broker_address(admin, broker)
    response = await ask(admin, address, RequestCode.AUTH_GET_USER, UserRequest(username=username))
    return await broker_api.read(response, UserInfo) if response.body else None


async def users(admin: AdminLink, *, broker: str, containing: str = "") -> list[UserInfo]:
    """The users of a broker, or those whose name contains a text [listUser, 3005]."""
    address = await broker_address(admin, broker)
    header = ListUsersRequest(filter=containing)
    response = await ask(admin, address, RequestCode.AUTH_LIST_USER, header)
    return await broker_api.read(response, list[UserInfo]) if response.body else []


# --- ACLs -----------------------------------------------------------------------------------------


async def create_acl(
    admin: AdminLink, acl_info: AclInfo, *, cluster: str | None = None, broker: str | None = None
) -> list[str]:
    """Let a subject (``User:name``) do things; gives the brokers' addresses [createAcl, 3006]."""
    found = await chosen_brokers(admin, broker, cluster)
    header = AclRequest(subject=acl_info.subject)
    return await ask_each(
        admin, found, RequestCode.AUTH_CREATE_ACL, header, body=encode_body(acl_info)
    )


async def update_acl(
    admin: AdminLink, acl_info: AclInfo, *, cluster: str | None = None, broker: str | None = None
) -> list[str]:
    """Change what a subject may do [updateAcl, 3007]."""
    found = await chosen_brokers(admin, broker, cluster)
    header = AclRequest(subject=acl_info.subject)
    return await ask_each(
        admin, found, RequestCode.AUTH_UPDATE_ACL, header, body=encode_body(acl_info)
    )


async def delete_acl(
    admin: AdminLink,
    subject: str,
    *,
    resource: str | None = None,
    policy_type: str | None = None,
    cluster: str | None = None,
    broker: str | None = None,
) -> list[str]:
    """Take rights away, of one resource or all [deleteAcl, 3008]."""
    found = await chosen_brokers(admin, broker, cluster)
    header = DeleteAclRequest(subject=subject, policy_type=policy_type, resource=resource)
    return await ask_each(admin, found, RequestCode.AUTH_DELETE_ACL, header)


async def acl(admin: AdminLink, subject: str, *, broker: str) -> AclInfo | None:
    """What a subject may do; None if nothing is known of it [getAcl, 3009]."""
    address = await broker_address(admin, broker)
    response = await ask(admin, address, RequestCode.AUTH_GET_ACL, AclRequest(subject=subject))
    return await broker_api.read(response, AclInfo) if response.body else None


async def acls(
    admin: AdminLink, *, broker: str, subject_containing: str = "", resource_containing: str = ""
) -> list[AclInfo]:
    """What every subject may do, or some, by parts of their or the resources' names [listAcl,
    3010]."""
    address = await broker_address(admin, broker)
    header = ListAclsRequest(subject_filter=subject_containing, resource_filter=resource_containing)
    response = await ask(admin, address, RequestCode.AUTH_LIST_ACL, header)
    return await broker_api.read(response, list[AclInfo]) if response.body else []


# --- Access keys ----------------------------------------------------------------------------------


async def update_access_key(
    admin: AdminLink,
    key: AccessKey,
    *,
    cluster: str | None = None,
    broker: str | None = None,
) -> list[str]:
    """Make or change an access key [updateAclConfig of 4.x, 50]."""
    header = UpdateAccessKeyRequest(
        access_key=key.access_key or "",
        secret_key=key.secret_key,
        white_remote_address=key.white_remote_address,
        admin=key.admin,
        default_topic_perm=key.default_topic_perm,
        default_group_perm=key.default_group_perm,
        topic_perms=None if key.topic_perms is None else ",".join(key.topic_perms),
        group_perms=None if key.group_perms is None else ",".join(key.group_perms),
    )
    found = await chosen_brokers(admin, broker, cluster)
    return await ask_each(admin, found, RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, header)


async def delete_access_key(
    admin: AdminLink, access_key: str, *, cluster: str | None = None, broker: str | None = None
) -> list[str]:
    """Delete an access key [deleteAccessConfig of 4.x, 51]."""
    found = await chosen_brokers(admin, broker, cluster)
    header = DeleteAccessKeyRequest(access_key=access_key)
    return await ask_each(admin, found, RequestCode.DELETE_ACL_CONFIG, header)


async def access_key_versions(admin: AdminLink, *, broker: str) -> GetAccessInfoResponse:
    """Which version of its access keys a broker has [clusterAclConfigVersion of 4.x, 52]."""
    address = await broker_address(admin, broker)
    response = await ask(admin, address, RequestCode.GET_BROKER_CLUSTER_ACL_INFO)
    return GetAccessInfoResponse.decode(response.fields)


async def access_keys(admin: AdminLink, *, broker: str) -> AccessKeys:
    """The access keys of a broker [getAclConfig of 4.x, 54]."""
    address = await broker_address(admin, broker)
    response = await ask(admin, address, RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)
    return await broker_api.read(response, AccessKeys)


async def update_white_addresses(
    admin: AdminLink,
    addresses: Iterable[str],
    *,
    cluster: str | None = None,
    broker: str | None = None,
) -> list[str]:
    """From which addresses clients need no access key [updateGlobalWhiteAddr of 4.x, 53]."""
    found = await chosen_brokers(admin, broker, cluster)
    header = UpdateWhiteAddressesRequest(global_white_addrs=",".join(addresses))
    return await ask_each(admin, found, RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, header)
