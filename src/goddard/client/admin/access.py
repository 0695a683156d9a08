"""Administration of access control: users and ACLs from 5.3 on, access keys from 4.5 to 5.3.

Brokers of the other generation refuse with REQUEST_CODE_NOT_SUPPORTED.

Brackets at the end of a docstring sentence give the command of mqadmin and the request code.
"""

from collections.abc import Iterable

from goddard.client import broker_api
from goddard.client.admin.requests import (
    AdminBase,
    ask,
    ask_each,
    broker_address,
    chosen_brokers,
)
from goddard.client.arguments import Text
from goddard.protocol.bodies import encode_body
from goddard.protocol.bodies_admin import AccessKey, AccessKeys, AclInfo, UserInfo
from goddard.protocol.codes import RequestCode
from goddard.protocol.headers.admin import (
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


class AccessMethods(AdminBase):
    """Read and change users, access control lists (ACLs) and access keys."""

    # Users

    async def create_user(
        self,
        username: str,
        password: Text,
        *,
        user_type: str = "Normal",
        user_status: str | None = None,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Create a user, ``Normal`` or ``Super``; returns the addresses of the brokers [createUser,
        3001].

        ``user_status`` is ``enable``, as if it were not given, or ``disable``.
        """
        user = UserInfo(
            username=username, password=password, user_type=user_type, user_status=user_status
        )
        found = await chosen_brokers(self, broker, cluster)
        header = UserRequest(username=username)
        return await ask_each(
            self, found, RequestCode.AUTH_CREATE_USER, header, body=encode_body(user)
        )

    async def update_user(
        self,
        username: str,
        *,
        password: Text | None = None,
        user_type: str | None = None,
        user_status: str | None = None,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Change the password, type or status (``enable``, ``disable``) of a user [updateUser,
        3002].
        """
        user = UserInfo(
            username=username, password=password, user_type=user_type, user_status=user_status
        )
        found = await chosen_brokers(self, broker, cluster)
        header = UserRequest(username=username)
        return await ask_each(
            self, found, RequestCode.AUTH_UPDATE_USER, header, body=encode_body(user)
        )

    async def delete_user(
        self, username: str, *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Delete a user [deleteUser, 3003]."""
        found = await chosen_brokers(self, broker, cluster)
        header = UserRequest(username=username)
        return await ask_each(self, found, RequestCode.AUTH_DELETE_USER, header)

    async def user(self, username: str, *, broker: str) -> UserInfo | None:
        """A user; None if there is no such user [getUser, 3004]."""
        address = await broker_address(self, broker)
        response = await ask(
            self, address, RequestCode.AUTH_GET_USER, UserRequest(username=username)
        )
        return await broker_api.read(response, UserInfo) if response.body else None

    async def users(self, *, broker: str, containing: Text = "") -> list[UserInfo]:
        """The users of a broker, or those whose names contain a text [listUser, 3005]."""
        address = await broker_address(self, broker)
        header = ListUsersRequest(filter=containing)
        response = await ask(self, address, RequestCode.AUTH_LIST_USER, header)
        return await broker_api.read(response, list[UserInfo]) if response.body else []

    # ACLs

    async def create_acl(
        self, acl_info: AclInfo, *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Grant rights to a subject (``User:name``); returns the addresses of the brokers
        [createAcl, 3006].
        """
        found = await chosen_brokers(self, broker, cluster)
        header = AclRequest(subject=acl_info.subject)
        return await ask_each(
            self, found, RequestCode.AUTH_CREATE_ACL, header, body=encode_body(acl_info)
        )

    async def update_acl(
        self, acl_info: AclInfo, *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Change the rights of a subject [updateAcl, 3007]."""
        found = await chosen_brokers(self, broker, cluster)
        header = AclRequest(subject=acl_info.subject)
        return await ask_each(
            self, found, RequestCode.AUTH_UPDATE_ACL, header, body=encode_body(acl_info)
        )

    async def delete_acl(
        self,
        subject: str,
        *,
        resource: str | None = None,
        policy_type: str | None = None,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Delete the rights of a subject, to one resource or to all [deleteAcl, 3008]."""
        found = await chosen_brokers(self, broker, cluster)
        header = DeleteAclRequest(subject=subject, policy_type=policy_type, resource=resource)
        return await ask_each(self, found, RequestCode.AUTH_DELETE_ACL, header)

    async def acl(self, subject: str, *, broker: str) -> AclInfo | None:
        """The rights of a subject; None if it has no ACL [getAcl, 3009]."""
        address = await broker_address(self, broker)
        response = await ask(self, address, RequestCode.AUTH_GET_ACL, AclRequest(subject=subject))
        return await broker_api.read(response, AclInfo) if response.body else None

    async def acls(
        self, *, broker: str, subject_containing: Text = "", resource_containing: Text = ""
    ) -> list[AclInfo]:
        """The ACLs of a broker, of all subjects or those whose names or resources contain a text
        [listAcl, 3010].
        """
        address = await broker_address(self, broker)
        header = ListAclsRequest(
            subject_filter=subject_containing, resource_filter=resource_containing
        )
        response = await ask(self, address, RequestCode.AUTH_LIST_ACL, header)
        return await broker_api.read(response, list[AclInfo]) if response.body else []

    # Access keys

    async def update_access_key(
        self,
        key: AccessKey,
        *,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Create or change an access key [updateAclConfig of 4.x, 50]."""
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
        found = await chosen_brokers(self, broker, cluster)
        return await ask_each(self, found, RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, header)

    async def delete_access_key(
        self, access_key: str, *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Delete an access key [deleteAccessConfig of 4.x, 51]."""
        found = await chosen_brokers(self, broker, cluster)
        header = DeleteAccessKeyRequest(access_key=access_key)
        return await ask_each(self, found, RequestCode.DELETE_ACL_CONFIG, header)

    async def access_key_versions(self, *, broker: str) -> GetAccessInfoResponse:
        """The versions of the access keys of a broker [clusterAclConfigVersion of 4.x, 52]."""
        address = await broker_address(self, broker)
        response = await ask(self, address, RequestCode.GET_BROKER_CLUSTER_ACL_INFO)
        return GetAccessInfoResponse.decode(response.fields)

    async def access_keys(self, *, broker: str) -> AccessKeys:
        """The access keys of a broker [getAclConfig of 4.x, 54]."""
        address = await broker_address(self, broker)
        response = await ask(self, address, RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)
        return await broker_api.read(response, AccessKeys)

    async def update_white_addresses(
        self,
        addresses: Iterable[str],
        *,
        path: Text | None = None,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Set the addresses whose clients need no access key [updateGlobalWhiteAddr of 4.x, 53].

        ``path`` is the file of the broker to change, if it is not the default one.
        """
        found = await chosen_brokers(self, broker, cluster)
        header = UpdateWhiteAddressesRequest(
            global_white_addrs=",".join(addresses), acl_file_full_path=path
        )
        return await ask_each(self, found, RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, header)
