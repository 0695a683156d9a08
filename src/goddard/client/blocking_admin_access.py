"""Administration of who may do what: users and ACLs of 5.3 and later, access keys of 4.5 to 5.3.

Written by tools/write_blocking.py from the asyncio classes: change those instead.
"""

from collections.abc import Iterable

from goddard.client.admin.admin import Admin as AsyncAdmin
from goddard.client.blocking import BlockingClient
from goddard.protocol.bodies_admin import AccessKey, AccessKeys, AclInfo, UserInfo
from goddard.protocol.headers_admin import GetAccessInfoResponse


class AdminAccess(BlockingClient[AsyncAdmin]):
    def users(self, *, broker: str, containing: str = "") -> list[UserInfo]:
        """The users of a broker, or those whose name contains a text [listUser, 3005]."""
        return self._run(lambda: self._core.users(broker=broker, containing=containing))

    def user(self, username: str, *, broker: str) -> UserInfo | None:
        """A user; None if there is no such user [getUser, 3004]."""
        return self._run(lambda: self._core.user(username, broker=broker))

    def create_user(
        self,
        username: str,
        password: str,
        *,
        user_type: str = "Normal",
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Make a user, ``Normal`` or ``Super``; gives the brokers' addresses [createUser, 3001]."""
        return self._run(
            lambda: self._core.create_user(
                username, password, user_type=user_type, cluster=cluster, broker=broker
            )
        )

    def update_user(
        self,
        username: str,
        *,
        password: str | None = None,
        user_type: str | None = None,
        user_status: str | None = None,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Change a user's password, type or status, ``enable`` or ``disable`` [updateUser,
        3002].
        """
        return self._run(
            lambda: self._core.update_user(
                username,
                password=password,
                user_type=user_type,
                user_status=user_status,
                cluster=cluster,
                broker=broker,
            )
        )

    def delete_user(
        self, username: str, *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Delete a user [deleteUser, 3003]."""
        return self._run(lambda: self._core.delete_user(username, cluster=cluster, broker=broker))

    def acls(
        self, *, broker: str, subject_containing: str = "", resource_containing: str = ""
    ) -> list[AclInfo]:
        """What every subject may do, or some, by parts of their or the resources' names
        [listAcl, 3010].
        """
        return self._run(
            lambda: self._core.acls(
                broker=broker,
                subject_containing=subject_containing,
                resource_containing=resource_containing,
            )
        )

    def acl(self, subject: str, *, broker: str) -> AclInfo | None:
        """What a subject may do; None if nothing is known of it [getAcl, 3009]."""
        return self._run(lambda: self._core.acl(subject, broker=broker))

    def create_acl(
        self, acl_info: AclInfo, *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Let a subject (``User:name``) do things; gives the brokers' addresses [createAcl,
        3006].
        """
        return self._run(lambda: self._core.create_acl(acl_info, cluster=cluster, broker=broker))

    def update_acl(
        self, acl_info: AclInfo, *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Change what a subject may do [updateAcl, 3007]."""
        return self._run(lambda: self._core.update_acl(acl_info, cluster=cluster, broker=broker))

    def delete_acl(
        self,
        subject: str,
        *,
        resource: str | None = None,
        policy_type: str | None = None,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Take rights away, of one resource or all [deleteAcl, 3008]."""
        return self._run(
            lambda: self._core.delete_acl(
                subject, resource=resource, policy_type=policy_type, cluster=cluster, broker=broker
            )
        )

    def access_keys(self, *, broker: str) -> AccessKeys:
        """The access keys of a broker [getAclConfig of 4.x, 54]."""
        return self._run(lambda: self._core.access_keys(broker=broker))

    def access_key_versions(self, *, broker: str) -> GetAccessInfoResponse:
        """Which version of its access keys a broker has [clusterAclConfigVersion of 4.x, 52]."""
        return self._run(lambda: self._core.access_key_versions(broker=broker))

    def update_access_key(
        self, key: AccessKey, *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Make or change an access key [updateAclConfig of 4.x, 50]."""
        return self._run(lambda: self._core.update_access_key(key, cluster=cluster, broker=broker))

    def delete_access_key(
        self, access_key: str, *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Delete an access key [deleteAccessConfig of 4.x, 51]."""
        return self._run(
            lambda: self._core.delete_access_key(access_key, cluster=cluster, broker=broker)
        )

    def update_white_addresses(
        self, addresses: Iterable[str], *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """From which addresses clients need no access key [updateGlobalWhiteAddr of 4.x, 53]."""
        return self._run(
            lambda: self._core.update_white_addresses(addresses, cluster=cluster, broker=broker)
        )
